"""The server's commands of the `everlong` program, one file each. The client's program finds them by entry points."""
