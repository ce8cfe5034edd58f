"""Server-sent events, JSON over WebSocket, and cancellation when a client disconnects."""
