"""OpenAI's files: uploaded whole, in parts, or inside a request."""
