"""Figures of several parts in a text, such as dates, prices, versions, addresses and order numbers."""
