"""The public names of the package: each can be imported, and PyTorch is not imported before the first use."""

from __future__ import annotations

import subprocess
import sys

import pytest

import everlong_models


@pytest.mark.parametrize("name", everlong_models.__all__)
def test_every_name_is_there(name: str) -> None:
    there = getattr(everlong_models, name)
    assert name == "MEMORIES" or there.__module__.startswith("everlong_models")


def test_every_name_has_a_module() -> None:
    assert set(everlong_models.__all__) == set(everlong_models._MODULES)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = everlong_models.Nothing


@pytest.mark.parametrize(
    "module", ["everlong_models.errors", "everlong_server.store.tenants.credentials", "everlong_server.cli.keys"]
)
def test_modules_without_models_do_not_import_pytorch(module: str) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
