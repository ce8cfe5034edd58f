"""OpenAI's API, for its own SDKs: a translation onto documents and session_turns."""
