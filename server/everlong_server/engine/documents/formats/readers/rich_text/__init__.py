"""Readers of Rich Text Format (RTF)."""
