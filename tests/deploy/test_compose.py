"""docker-compose.yml and its overlay, as Compose itself understands them; no engine is needed for that."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from everlong_server.doctor import run_checks
from everlong_server.settings import Settings, load_settings
from everlong_server.store.redis.embedded import redis_server
from tests.deploy.files import ROOT, dockerfile, image_environment, program, run

BASE = "docker-compose.yml"
CPU = "deploy/compose.cpu.yml"
TLS = "deploy/compose.tls.yml"


class Project:
    """A copy of the compose files, to be resolved with a `.env` of the test's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.program = program("docker-compose")
        shutil.copy(ROOT / BASE, folder)
        shutil.copytree(ROOT / "deploy", folder / "deploy")

    def resolve(self, *files: str) -> subprocess.CompletedProcess[str]:
        options = [option for file in files for option in ("-f", file)]
        return run(self.program, *options, "config", "--format", "json", cwd=self.folder)

    def config(self, *files: str, **variables: str) -> dict[str, Any]:
        (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        result = self.resolve(*files)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def settings_of(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What the server in the container would run with. An unknown or bad setting raises."""
    with monkeypatch.context() as context, tempfile.TemporaryDirectory() as secrets:
        for name, value in (image_environment() | config["services"]["server"]["environment"]).items():
            context.setenv(name, value)
        context.setenv("EVERLONG_SECRETS_DIR", secrets)  # that of the container is not here
        return load_settings()


def test_compose_refuses_what_it_does_not_know(project: Project) -> None:
    """The check checks: the tests below rest on it."""
    file = project.folder / BASE
    file.write_text(file.read_text().replace("stop_grace_period", "stop_grace"))
    assert "stop_grace" in project.resolve(BASE).stderr


def test_settings(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project.config(BASE)
    server, settings = config["services"]["server"], settings_of(config, monkeypatch)
    folders = {settings.data_dir, settings.models_dir, Path("/secrets")}
    assert {volume["target"] for volume in server["volumes"]} == {str(folder) for folder in folders}
    assert settings.asks_for_keys
    assert server["depends_on"]["redis"]["condition"] == "service_healthy"


def test_env_file_sets_what_make_serve_would(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project.config(
        BASE, EVERLONG_HOST="0.0.0.0", EVERLONG_PORT="9000", EVERLONG_MEMORY="rmt", EVERLONG_DATA_DIR="/elsewhere",
        EVERLONG_AUTH="off",
    )  # fmt: skip
    settings, (port,) = settings_of(config, monkeypatch), config["services"]["proxy"]["ports"]
    assert (settings.memory, settings.asks_for_keys) == ("rmt", False)
    assert (port["host_ip"], port["published"]) == ("0.0.0.0", "9000")
    assert (settings.host, settings.port, str(settings.data_dir)) == ("0.0.0.0", 8080, "/data")


def test_nothing_is_open_to_other_machines(project: Project) -> None:
    services = project.config(BASE)["services"]
    published = {name: port["host_ip"] for name, service in services.items() for port in service.get("ports", [])}
    assert published == dict.fromkeys(["proxy", "prometheus", "grafana"], "127.0.0.1")


def test_the_ports_lead_from_host_to_server(project: Project) -> None:
    """Host, proxy, server, each by the port that the next one listens on; and any number of servers."""
    services = project.config(BASE)["services"]
    text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text()
    assert re.findall(r"listen (\d+);", text) == [str(port["target"]) for port in services["proxy"]["ports"]]
    name, port = re.findall(r"set \$server (\w+);\s+proxy_pass http://\$server:(\d+);", text)[0]
    assert [port] == dockerfile()["EXPOSE"] == [services[name]["environment"]["EVERLONG_PORT"]]
    assert services[name].keys().isdisjoint({"ports", "container_name"})


def test_only_redis_and_the_server_know_the_password(project: Project) -> None:
    services = project.config(BASE)["services"]
    mounts = {
        name: volume.get("read_only", False)
        for name, service in services.items()
        for volume in service["volumes"]
        if volume["source"] == "secrets"
    }
    assert mounts == {"redis": False, "server": True}
    assert services["server"]["environment"]["EVERLONG_SECRETS_DIR"] == "/secrets"
    assert "EVERLONG_REDIS_URL" not in services["server"]["environment"]
    assert project.config(BASE, REDIS_PASSWORD="chosen")["services"]["redis"]["environment"] == {
        "REDIS_PASSWORD": "chosen"
    }


def test_only_volumes_are_writable(project: Project) -> None:
    for name, service in project.config(BASE)["services"].items():
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if name != "redis":  # whose image starts as root, to become the owner of its data
            assert service["cap_drop"] == ["ALL"], name
        written = {volume["target"] for volume in service["volumes"] if not volume.get("read_only")}
        assert written <= {"/data", "/models", "/secrets", "/prometheus", "/var/lib/grafana"}, name
    assert image_environment()["TRITON_CACHE_DIR"].startswith("/tmp/")
    assert project.config(BASE)["services"]["server"]["tmpfs"] == ["/tmp:exec"]  # else it may not run what it compiles
    assert project.config(BASE, CPU)["services"]["server"]["tmpfs"] == ["/tmp"]


def test_the_server_is_not_killed_while_it_drains(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project.config(BASE)
    grace = re.fullmatch(r"(?:(\d+)m)?(\d+)s", config["services"]["server"]["stop_grace_period"])
    assert grace is not None
    closing = 5  # uvicorn's timeout_graceful_shutdown
    drain = settings_of(config, monkeypatch).drain_seconds
    assert 60 * int(grace[1] or 0) + int(grace[2]) > drain + closing


def test_images_are_pinned_and_services_come_back(project: Project) -> None:
    for name, service in project.config(BASE)["services"].items():
        tag = service["image"].partition(":")[2]
        assert ("build" in service and tag) or re.match(r"v?\d+\.\d+", tag), f"{name}: {service['image']}"
        assert service["restart"] == "unless-stopped"


def test_mounts_are_there(project: Project) -> None:
    config = project.config(BASE)
    mounts = [volume for service in config["services"].values() for volume in service["volumes"]]
    assert {mount["source"] for mount in mounts if mount["type"] == "volume"} == set(config["volumes"])
    bound = [Path(mount["source"]) for mount in mounts if mount["type"] == "bind"]
    assert {path.relative_to(project.folder / "deploy").parts[0] for path in bound} == {
        "grafana", "nginx", "prometheus", "redis",
    }  # fmt: skip
    assert [path for path in bound if not path.exists()] == []


def test_a_gpu_or_an_overlay_for_the_cpu(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    config = project.config(BASE)
    server = config["services"]["server"]
    (device,) = server["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert settings_of(config, monkeypatch).device == "cuda"
    assert server["build"]["args"] == {"ACCELERATOR": "cuda"}
    config = project.config(COMPOSE_FILE=f"{BASE}:{CPU}")
    cpu = config["services"]["server"]
    assert cpu["image"] != server["image"]
    assert "deploy" not in cpu
    assert settings_of(config, monkeypatch).device == "cpu"
    assert cpu["build"]["args"] == {"ACCELERATOR": "cpu", "TORCH_INDEX_URL": ""}


def test_tls_overlay(project: Project) -> None:
    (project.folder / ".env").write_text("TLS_KEY=key.pem\n")
    assert "TLS_CERTIFICATE" in project.resolve(BASE, TLS).stderr
    files = {"TLS_CERTIFICATE": "/certificates/chain.pem", "TLS_KEY": "/certificates/key.pem"}
    proxy = project.config(BASE, TLS, **files)["services"]["proxy"]
    (port,) = proxy["ports"]
    text = (ROOT / "deploy" / "nginx" / "tls.conf").read_text()
    assert (port["host_ip"], port["published"]) == ("0.0.0.0", "443")
    assert f"listen {port['target']} ssl;" in text
    mounted = {volume["target"]: volume["source"] for volume in proxy["volumes"]}
    for directive, source in (("ssl_certificate", files["TLS_CERTIFICATE"]), ("ssl_certificate_key", files["TLS_KEY"])):
        (target,) = re.findall(rf"{directive} (\S+);", text)
        assert mounted[target] == source
    assert "include /etc/nginx/tls/*.conf;" in (ROOT / "deploy" / "nginx" / "nginx.conf").read_text()
    assert "/etc/nginx/tls/tls.conf" in mounted


def test_doctor_finds_no_fault_with_this_redis(project: Project, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its command, run here, by another redis-server. (deploy/redis/start.sh goes before it: test_stack.py.)"""
    folder = tmp_path_factory.mktemp("redis")
    options = project.config(BASE)["services"]["redis"]["command"]
    socket = folder / "redis.sock"
    command = [redis_server(), *options, "--port", "0", "--unixsocket", str(socket), "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert any("ready to accept connections" in line.lower() for line in process.stdout)
            settings = Settings(redis_url=f"unix://{socket}", data_dir=folder / "data", models_dir=folder / "models")
            (finding,) = [finding for finding in run_checks(settings) if finding.name == "Redis"]
        finally:
            process.terminate()
            process.communicate()
    assert finding.ok, finding.detail
