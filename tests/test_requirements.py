"""requirements.txt: the hashes of everything that `make serve` installs, at the versions of constraints.txt."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINES = (ROOT / "requirements.txt").read_text().replace("\\\n", " ").splitlines()[1:]
LOCKED = {canonicalize_name(Requirement(line.split(" --hash")[0]).name): line for line in LINES}
UNHASHED = {"torch", "triton"}
"""PyTorch's builds differ between indexes; triton comes with those for GPUs."""


OWN = {"everlong": ROOT, "everlong-lab": ROOT / "lab", "everlong-client": ROOT / "clients" / "python"}


def _own(name: str) -> list[str]:
    """Return what a distribution of this repository requires, with its extras as markers."""
    project = tomllib.loads((OWN[name] / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    return project["dependencies"] + [
        f"{text.partition(';')[0]}; extra == '{extra}'"
        for extra in ("formats", "tracing")
        for text in extras.get(extra, ())
    ]


def test_each_line_has_a_version_and_hashes() -> None:
    assert len(LINES) == len(LOCKED) > 80
    for line in LINES:
        assert re.fullmatch(r"[a-z0-9._-]+==\S+( ; .+?)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line


def test_versions_are_those_of_the_constraints() -> None:
    pinned = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")
    )
    for name, version in pinned.items():
        if (locked := LOCKED.get(canonicalize_name(name))) is not None:
            assert f"=={version} " in locked, (name, version, locked[:80])


@pytest.mark.parametrize("extra", ["", "formats", "tracing"])
def test_every_dependency_is_locked_with_its_own(extra: str) -> None:
    """Walks the installed packages: a package that is not locked would be missing after `make serve`."""
    waiting, seen = [("everlong", extra), ("everlong-lab", ""), ("everlong-client", "")], set[tuple[str, str]]()
    while waiting:
        name, wanted = waiting.pop()
        if (name, wanted) in seen:
            continue
        seen.add((name, wanted))
        try:
            needed = [Requirement(text) for text in (_own(name) if name in OWN else requires(name) or ())]
        except PackageNotFoundError:  # for another system
            continue
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate({"extra": wanted}):
                child = canonicalize_name(requirement.name)
                assert child in LOCKED or child in UNHASHED or child.startswith("everlong"), (name, child)
                waiting += [(child, each) for each in (requirement.extras or {""})]
    assert len(seen) > 50 or extra


def test_pip_refuses_a_file_with_another_hash(tmp_path: Path) -> None:
    """The option that the Makefile and the Dockerfile use."""
    wheel = tmp_path / "words-1.0-py3-none-any.whl"
    wheel.write_bytes(b"PK")
    (tmp_path / "requirements.txt").write_text(f"words==1.0 --hash=sha256:{'0' * 64}\n")
    for file in ("Makefile", "Dockerfile"):
        assert (
            "--no-deps --require-hashes" in (ROOT / file).read_text()
            or "--require-hashes --no-deps" in (ROOT / file).read_text()
        )
    done = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-index", "--find-links", str(tmp_path),
         "-d", str(tmp_path / "out"), "-r", str(tmp_path / "requirements.txt")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
