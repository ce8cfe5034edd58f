"""Benchmarks of the readers of file formats: what they keep, and what they cost, next to libraries."""
