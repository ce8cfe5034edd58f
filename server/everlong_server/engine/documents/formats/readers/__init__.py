"""One module for each file format, or family of them: `read` yields the blocks of a file."""
