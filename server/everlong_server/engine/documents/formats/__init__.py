"""Converts files of many formats to text, with an outline of their pages and sections and notes on what is not in the text."""
