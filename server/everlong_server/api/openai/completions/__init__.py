"""OpenAI's completions: texts are continued without a chat format."""
