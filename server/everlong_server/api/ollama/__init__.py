"""Ollama's API (chat, generate, embed, and the model's description), for clients of Ollama."""
