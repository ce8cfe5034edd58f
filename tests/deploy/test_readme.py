"""Settings, variables, files, volumes, images and flags that deploy/README.md names exist."""

from __future__ import annotations

import re
import shlex

import pytest
import yaml

from everlong_server.settings import PREFIX, Settings, load_settings
from tests.deploy.files import README, ROOT

TEXT = README.read_text()
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


def test_settings_exist_and_their_values_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    named = set(re.findall(rf"{PREFIX}[A-Z_]+", TEXT))
    assert named
    assert named <= {f"{PREFIX}{field}".upper() for field in Settings.model_fields}
    for name, value in re.findall(rf"({PREFIX}[A-Z_]+)=([^\s`]+)", TEXT):
        monkeypatch.setenv(name, value)
    load_settings()


def test_other_variables_exist() -> None:
    files = [ROOT / "docker-compose.yml", *(ROOT / "deploy").glob("compose.*.yml")]
    used = {name for file in files for name in re.findall(r"\$\{(\w+)", file.read_text())} | {
        "COMPOSE_FILE",
        "PIP_INDEX_URL",
        "HF_ENDPOINT",
    }
    named = set(re.findall(r"\b([A-Z]+(?:_[A-Z]+)+)=", TEXT))
    assert {name for name in named if not name.startswith(PREFIX)} == {name for name in used if PREFIX not in name}


def test_files_exist() -> None:
    named = re.findall(r"(?:deploy/[\w./-]+|docker-compose)\.yml", TEXT)
    assert named
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_volumes_and_images_are_those_of_compose() -> None:
    volumes = {f"{COMPOSE['name']}_{volume}" for volume in COMPOSE["volumes"]}
    assert set(re.findall(r"^\| `(everlong_\w+)`", TEXT, re.MULTILINE)) == volumes
    assert set(re.findall(r"-v (everlong_\w+):", TEXT)) <= volumes
    overlay = yaml.safe_load(
        (ROOT / "deploy/compose.cpu.yml").read_text().replace("!reset null", "{}").replace("!override ", "")
    )
    files = (COMPOSE, overlay)
    images = {service["image"] for file in files for service in file["services"].values()}
    assert set(re.findall(r"\s((?:redis|everlong):[\w.-]+)", TEXT)) <= images


def test_flags_after_the_image_exist() -> None:
    (flags,) = re.findall(r"everlong:cpu (--.+)$", TEXT, re.MULTILINE)
    load_settings(shlex.split(flags))


def test_ray_sends_the_module_to_every_node() -> None:
    """Only on a cluster of one machine is the folder of the deploying process there on each node."""
    commands = [line for file in (README, ROOT / "deploy/ray_serve.py") for line in file.read_text().splitlines()]
    started = [line.strip() for line in commands if line.strip().startswith("serve run")]
    assert len(started) == 2
    assert all(line.startswith("serve run --working-dir . ray_serve:app ") for line in started)
