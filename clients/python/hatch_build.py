"""Hatchling's build hook: makes the blocking client before a wheel, an editable install or an sdist is built."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class MakeSync(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        runpy.run_path(str(Path(self.root) / "make_sync.py"), run_name="__main__")
