"""Anthropic's API (messages and the count of their tokens), for Anthropic's SDKs."""
