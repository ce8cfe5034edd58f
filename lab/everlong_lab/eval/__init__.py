"""`everlong eval NAME`: how good answers are, on texts and questions that people wrote."""
