"""Training of the reranker, which ranks the sentences of the passages that the search finds (`everlong_models.text.reranker`)."""
