"""`Stack`: nginx's and Redis' real configuration in front of and behind three real servers."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import ExitStack
from pathlib import Path

import httpx
import yaml

from everlong_lab.harness.ports import free_port
from everlong_server.store.redis.embedded import redis_server
from tests.deploy.files import ROOT, program, run
from tests.deploy.fleet import Fleet
from tests.deploy.names import Names
from tests.process import wait_for
from tests.tinymodel import make_model

SERVERS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())


class Redis:
    """deploy/redis/start.sh with the arguments of docker-compose.yml, and another redis-server."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.secrets, programs, data = folder / "secrets", folder / "bin", folder / "redis"
        for made in (self.secrets, programs, data):
            made.mkdir(exist_ok=True)
        image = programs / "docker-entrypoint.sh"  # what the image has there, without the change of user
        image.write_text('#!/bin/sh\nexec "$@"\n')
        image.chmod(0o755)
        if not (programs / "redis-server").exists():
            (programs / "redis-server").symlink_to(redis_server())
        self.port = free_port()
        command = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", word) for word in COMPOSE["services"]["redis"]["command"]]
        self.process = subprocess.Popen(
            [
                "sh",
                ROOT / "deploy" / "redis" / "start.sh",
                *command,
                "--bind",
                "127.0.0.1",
                "--port",
                str(self.port),
                "--dir",
                str(data),
            ],
            env={"PATH": f"{programs}:{os.environ['PATH']}", "SECRETS_DIR": str(self.secrets), **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.said = []
        for line in self.process.stdout:
            self.said.append(line)
            if "ready to accept connections" in line.lower():
                break

    @property
    def url(self) -> str:
        """As the server finds it, but for the host."""
        (host,) = [name for name in COMPOSE["services"] if name == "redis"]
        url = (self.secrets / "everlong_redis_url").read_text().strip()
        assert url.endswith(f"@{host}:6379/0")
        return url.replace(f"@{host}:6379", f"@127.0.0.1:{self.port}")

    def stop(self) -> None:
        self.process.terminate()
        self.process.communicate()


class Stack:
    """Three servers of one Redis behind the proxy, whose only name resolves to `names.addresses`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.temporary = folder, folder / "data", folder / "nginx"
        self.port, self.tls_port, self.server_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.certificate = folder / "tls" / "certificate.pem"
        self._log = folder / "servers.log"
        self._ending = ExitStack()

    def start(self) -> None:
        """All of it; what was started ends with `stop`, also if this fails."""
        model, secrets = make_model(self.folder), self.folder / "server-secrets"
        for made in (self.data, self.temporary, secrets, self.certificate.parent):
            made.mkdir()
        database = Redis(self.folder)
        self._ending.callback(database.stop)
        (secrets / "everlong_redis_url").write_text(database.url)
        flags = {
            "model": model, "data-dir": self.data, "models-dir": self.data / "models", "secrets-dir": secrets,
            "port": self.server_port, "threads": 1, "max-streams": 1, "device": "cpu",
        }  # fmt: skip
        common = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        self.fleet = Fleet([["--host", address, *common] for address in SERVERS], self.data, self._log)
        self._ending.callback(self.fleet.stop)
        self.names = Names(SERVERS)
        self._ending.callback(self.names.close)
        self._make_certificate()
        proxy = subprocess.Popen([program("nginx"), "-c", self._configuration(), "-g", self._options()])
        self._ending.callback(proxy.wait, 10)
        self._ending.callback(proxy.terminate)
        self.http = self._ending.enter_context(httpx.Client(base_url=self.url, timeout=60))
        for url in [*map(self.at, SERVERS), self.url]:
            wait_for(lambda url=url: self._ready(url), 120, f"for {url}")

    def stop(self) -> None:
        self._ending.close()

    def _configuration(self) -> str:
        """deploy/nginx/nginx.conf, with the places that it speaks of."""
        text = (ROOT / "deploy" / "nginx" / "nginx.conf").read_text()
        for theirs, ours, times in (
            ("listen 8080;", f"listen 127.0.0.1:{self.port};", 1),
            ("resolver 127.0.0.11 valid=5s", f"resolver 127.0.0.1:{self.names.port} valid=1s", 1),
            ("http://$server:8080", f"http://$server:{self.server_port}", 1),
            ("/tmp/", f"{self.temporary}/", 6),
            ("/etc/nginx/tls/", f"{self.folder}/tls/", 1),
        ):
            assert text.count(theirs) == times, theirs
            text = text.replace(theirs, ours)
        file = self.folder / "nginx.conf"
        file.write_text(text)
        return str(file)

    def _make_certificate(self) -> None:
        """What deploy/compose.tls.yml mounts, with a certificate of our own making."""
        folder = self.certificate.parent
        text = (ROOT / "deploy" / "nginx" / "tls.conf").read_text()
        assert text.count("listen 8443 ssl") == 1
        text = text.replace("listen 8443 ssl", f"listen 127.0.0.1:{self.tls_port} ssl")
        (folder / "tls.conf").write_text(text.replace("/etc/nginx/tls/", f"{folder}/"))
        made = run(
            program("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=everlong",
            "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", self.certificate,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr

    def _options(self) -> str:
        return "daemon off;" + (" user root;" if os.getuid() == 0 else "")

    def _ready(self, url: str) -> bool:
        log = self._log.read_text()
        assert "Traceback" not in log, log[-3000:]
        try:
            return httpx.get(f"{url}/readyz", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def at(self, address: str) -> str:
        """One server's own URL."""
        return f"http://{address}:{self.server_port}"

    def spooled(self) -> list[Path]:
        """Files that nginx wrote."""
        return [path for path in self.temporary.rglob("*") if path.is_file() and path.name != "nginx.pid"]

    def session(self) -> str:
        answer = self.http.post("/v1/sessions", json={"documents": []})
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]
