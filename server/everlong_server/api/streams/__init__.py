"""Server-sent events, JSON over WebSocket, and callers that leave before they have their answer."""
