"""Answers batches of requests."""
