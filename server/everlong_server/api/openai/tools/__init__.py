"""Tools in requests to OpenAI's API, and calls in its answers."""
