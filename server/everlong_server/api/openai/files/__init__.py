"""OpenAI's files: what is uploaded at once, in parts, and inside requests."""
