"""Reads OpenDocument files (ISO/IEC 26300)."""
