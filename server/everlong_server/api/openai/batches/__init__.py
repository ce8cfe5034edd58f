"""OpenAI's batches."""
