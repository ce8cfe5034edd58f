"""`python -m everlong_client` is `everlong`."""

from everlong_client.cli.main import main

main()
