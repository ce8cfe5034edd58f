"""OpenAI's API (files, uploads, chat completions, responses), for OpenAI's SDKs."""
