"""Training of the reranker, which ranks the sentences that the search found (`everlong_models.text.reranker`)."""
