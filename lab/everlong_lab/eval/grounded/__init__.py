"""`everlong eval grounded`: how good answers about long documents are, on texts and questions written by people."""
