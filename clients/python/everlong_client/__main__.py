"""`python -m everlong_client` is `everlong`."""

from everlong_client.cli.cli import main

main()
