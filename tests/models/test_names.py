"""What the package is called by: every name is there, and none costs PyTorch before it is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import everlong_models


@pytest.mark.parametrize("name", everlong_models.__all__)
def test_every_name_is_there(name: str) -> None:
    there = getattr(everlong_models, name)
    assert name == "MEMORIES" or there.__module__.startswith("everlong_models")


def test_no_name_is_forgotten() -> None:
    assert set(everlong_models.__all__) == set(everlong_models._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = everlong_models.Nothing


@pytest.mark.parametrize(
    "module", ["everlong_models.errors", "everlong_server.store.tenants.credentials", "everlong_server.cli.keys"]
)
def test_who_needs_no_model_does_not_wait_for_one(module: str) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
