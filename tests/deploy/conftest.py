from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove settings of the environment."""
    for variable in list(os.environ):
        if variable.startswith(("EVERLONG_", "COMPOSE_", "REDIS_", "TLS_", "TORCH_INDEX_URL")):
            monkeypatch.delenv(variable)
