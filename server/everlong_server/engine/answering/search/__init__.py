"""What a message asks, and the search without an answer: in documents, and in vector stores."""
