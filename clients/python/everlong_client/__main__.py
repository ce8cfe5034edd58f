"""`python -m everlong_client` is `everlong`."""

from everlong_client.cli import main

main()
