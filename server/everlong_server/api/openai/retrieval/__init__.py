"""OpenAI's embeddings and vector stores, and Cohere's rerank: the search, without an answer."""
