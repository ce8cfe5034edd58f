"""`everlong eval remembers`: how much of a text a memory holds, by how likely it makes the right answers."""
