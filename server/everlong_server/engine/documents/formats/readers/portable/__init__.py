"""Reads PDF (ISO 32000)."""
