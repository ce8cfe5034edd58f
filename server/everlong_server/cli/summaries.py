"""The descriptions of the server's commands in `everlong --help`.

The entry point group `everlong.summaries` names `SUMMARIES`. This module must import nothing heavy, because
`everlong --help` imports it.
"""

SUMMARIES = {
    "serve": "Start the server.",
    "keys": "Create, list and revoke API keys.",
    "encryption": "Create an encryption key, and re-encrypt stored data.",
    "backup": "Write everything that is stored to one file.",
    "restore": "Write a backup to an empty store.",
    "models": "List, download and locate models.",
    "doctor": "Check this machine and the settings for problems.",
}
