"""Vector stores: named sets of documents. A document may be in many sets, and leaves them when it is deleted."""
