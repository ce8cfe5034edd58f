"""Run the `everlong` command: `python -m everlong_client`."""

from everlong_client.cli.main import main

main()
