"""What the APIs of OpenAI, Anthropic and Ollama share: they translate requests into what the engine takes."""
