"""The search without an answer: in documents, and in vector stores."""
