"""`python -m everlong_server.openapi FILE` writes the OpenAPI document: the contract between the server and its clients."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from everlong_models import Model
from everlong_server.app import create_app
from everlong_server.settings import Settings


def openapi() -> dict[str, Any]:
    """Return the OpenAPI document. Needs no model and no Redis, as the app does not start."""

    async def never() -> Model:
        raise AssertionError("the app does not start")

    return create_app(Settings(), "unix:///dev/null", never).openapi()


def render() -> str:
    """Return the text of `clients/openapi.json`."""
    return json.dumps(openapi(), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
