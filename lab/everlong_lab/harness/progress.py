"""`Progress`: the callback through which a long measurement reports its progress."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Takes the name of the current step, and the share of the whole work that is complete, 0 to 1."""
