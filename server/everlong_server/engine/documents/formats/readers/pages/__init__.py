"""What a browser shows on a page beyond the words in its source: links set apart, lines of drawings."""
