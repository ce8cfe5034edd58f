"""What the APIs of OpenAI, Anthropic and Ollama share: the translation of their requests into those of the engine."""
