"""Why a backup was not made, read or restored."""

from __future__ import annotations


class BackupError(Exception):
    """The backup could not be made, read or restored."""
