"""The commands that the `everlong` program takes up by entry points, one family a file."""
