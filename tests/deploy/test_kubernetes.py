"""deploy/kubernetes against Kubernetes' own schemas, and against the server that it runs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from everlong_server.api.access import PROBE_PATHS
from everlong_server.engine.documents.formats.conversion import MEMORY
from everlong_server.engine.documents.ingest import _CONVERTERS
from everlong_server.openapi import openapi
from everlong_server.settings import PREFIX, Settings, load_settings
from everlong_server.store.redis import keys
from everlong_server.store.tenants.credentials import is_secret
from tests.deploy.files import ROOT, dockerfile, image_environment, program, run

validate = pytest.importorskip("kubernetes_validate", reason="needs kubernetes-validate").validate

FOLDER = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("base", "gpu", "keda")
OLDEST = "1.30"
"""Of which deploy/kubernetes/README.md speaks."""

Object = dict[str, Any]


def objects(text: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module", params=OVERLAYS)
def built(request: pytest.FixtureRequest) -> list[Object]:
    """What an overlay comes to."""
    done = run(program("kubectl"), "kustomize", str(FOLDER / request.param))
    assert done.returncode == 0, done.stderr
    return objects(done.stdout)


@pytest.fixture(scope="module")
def base() -> dict[tuple[str, str], Object]:
    """The objects of the base as they are written, by kind and name."""
    files = yaml.safe_load((FOLDER / "base" / "kustomization.yaml").read_text())["resources"]
    every = [one for file in files for one in objects((FOLDER / "base" / file).read_text())]
    return {(one["kind"], one["metadata"]["name"]): one for one in every}


@pytest.fixture(scope="module")
def pod(base: dict[tuple[str, str], Object]) -> Object:
    return base["Deployment", "everlong"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def server(pod: Object) -> Object:
    (container,) = pod["containers"]
    return container


def environment(container: Object) -> dict[str, str]:
    return {one["name"]: one["value"] for one in container["env"]}


def own(one: Object) -> bool:
    """Whether the schema of an object is Kubernetes' own."""
    return "keda.sh" not in one["apiVersion"]


# Kubernetes understands it


@pytest.mark.parametrize("file", sorted(FOLDER.glob("*/*.yaml")), ids=lambda file: f"{file.parent.name}/{file.name}")
def test_files_are_what_kubernetes_takes(file: Path) -> None:
    every = objects(file.read_text())
    assert every
    for one in every:
        if own(one) and one["kind"] != "Kustomization" and file.parent.name == "base":
            for version in (OLDEST, "1.37"):
                validate(one, version, strict=True)


def test_the_check_can_fail(base: dict[tuple[str, str], Object]) -> None:
    import copy

    import kubernetes_validate

    broken = copy.deepcopy(base["Deployment", "everlong"])
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(broken, OLDEST, strict=True)


def test_overlays_come_to_what_kubernetes_takes(built: list[Object]) -> None:
    for one in built:
        if own(one):
            validate(one, OLDEST, strict=True)
        if one["kind"] != "Namespace":
            assert one["metadata"]["namespace"] == "everlong"
    assert {"Deployment", "StatefulSet", "Service", "PodDisruptionBudget"} <= {one["kind"] for one in built}


def test_nothing_that_is_named_is_missing(built: list[Object]) -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in built}
    claims = {
        claim["metadata"]["name"]
        for one in built
        for claim in one.get("spec", {}).get("volumeClaimTemplates", [])
        if one["kind"] == "StatefulSet"
    }
    for spec in pods(built):
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for volume in volumes.values():
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in names
        for container in spec["containers"]:
            for mount in container["volumeMounts"]:
                assert mount["name"] in volumes.keys() | claims, mount
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                action = container[probe].get("httpGet") or container[probe].get("tcpSocket")
                assert action is None or action["port"] in ports
    labels = [
        one["spec"]["template"]["metadata"]["labels"] for one in built if one["kind"] in ("Deployment", "StatefulSet")
    ]
    for one in built:
        if one["kind"] in ("Service", "PodDisruptionBudget"):
            selector = one["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert sum(wanted.items() <= label.items() for label in labels) == 1, one["metadata"]["name"]


def pods(every: list[Object]) -> Iterator[Object]:
    for one in every:
        if one["kind"] in ("Deployment", "StatefulSet"):
            yield one["spec"]["template"]["spec"]


# It is the server's


def test_settings_are_the_servers(server: Object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = environment(server)
    for name in given:
        assert name.removeprefix(PREFIX).lower() in Settings.model_fields, name
    for name, value in (image_environment() | given | {"EVERLONG_SECRETS_DIR": str(tmp_path)}).items():
        monkeypatch.setenv(name, value)
    settings = load_settings()
    assert settings.asks_for_keys
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"http": settings.port, "metrics": settings.metrics_port}
    assert [str(ports["http"])] == dockerfile()["EXPOSE"]
    mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
    assert {str(settings.data_dir), str(settings.models_dir), "/tmp", "/dev/shm"} <= mounts.keys()
    assert mounts[given["EVERLONG_SECRETS_DIR"]]["readOnly"]


def test_no_variable_comes_from_a_service(pod: Object, built: list[Object]) -> None:
    """Of a Service NAME there would be NAME_PORT and the like, which are settings where it is called everlong."""
    services = [one["metadata"]["name"] for one in built if one["kind"] == "Service"]
    assert any(f"{name.upper()}_".startswith(PREFIX) for name in services), "else it needs no test"
    assert pod["enableServiceLinks"] is False


def test_settings_of_the_overlays_are_the_servers() -> None:
    for file in FOLDER.glob("*/*.yaml"):
        for name in re.findall(rf"{PREFIX}[A-Z_]+", file.read_text()):
            assert name.removeprefix(PREFIX).lower() in Settings.model_fields, (file, name)


def test_secrets_are_where_the_server_looks(pod: Object, server: Object) -> None:
    items = {
        volume["name"]: {item["path"] for item in volume["secret"]["items"]}
        for volume in pod["volumes"]
        if "secret" in volume
    }
    assert items["secrets"] == {"everlong_redis_url"}  # a file of another name would be an unknown setting
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    admin = Path(environment(server)["EVERLONG_ADMIN_KEY_FILE"])
    assert str(admin.parent) == mounts["keys"]
    assert admin.name in items["keys"]
    # No file of the repository holds one.
    for file in FOLDER.glob("*/*.yaml"):
        assert "kind: Secret" not in file.read_text()


def test_probes_are_paths_that_need_no_key(server: Object) -> None:
    paths = openapi()["paths"]
    for probe, path in (("startupProbe", "/livez"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
        assert server[probe]["httpGet"]["path"] == path
        assert path in paths
        assert path in PROBE_PATHS


def test_answers_have_the_time_to_finish(pod: Object, server: Object) -> None:
    drain = float(environment(server)["EVERLONG_DRAIN_SECONDS"])
    hook = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= hook + drain + 5


def test_containers_may_do_nothing_that_they_need_not(base: dict[tuple[str, str], Object]) -> None:
    assert base["Namespace", "everlong"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for spec in pods(list(base.values())):
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
            }  # fmt: skip
            assert "memory" in container["resources"]["limits"]
    user = str(base["Deployment", "everlong"]["spec"]["template"]["spec"]["securityContext"]["runAsUser"])
    assert dockerfile()["USER"] == [user]


def test_the_memory_limit_covers_what_a_server_may_take(pod: Object, server: Object) -> None:
    """Kubernetes kills the whole server, not the conversion that takes too much."""
    table = (ROOT / "README.md").read_text()
    (model,) = re.findall(r"^\| .* \| `qwen2.5-coder-1.5b-reader` \| .* to ([\d.]+) GB \|$", table, re.MULTILINE)
    (private,) = [volume["emptyDir"]["sizeLimit"] for volume in pod["volumes"] if volume["name"] == "private"]
    converting = _CONVERTERS._executor._max_workers * MEMORY
    limit = server["resources"]["limits"]["memory"]
    assert gib(limit) >= float(model) * 1e9 + converting + gib(private)


def gib(quantity: str) -> int:
    """Return the bytes of a quantity such as `2Gi`."""
    assert quantity.endswith("Gi")
    return int(quantity[:-2]) << 30


def test_redis_keeps_what_it_is_given_and_throws_nothing_away(base: dict[tuple[str, str], Object]) -> None:
    (redis,) = base["StatefulSet", "redis"]["spec"]["template"]["spec"]["containers"]
    (script,) = redis["args"]
    for option in ("--appendonly yes", "--appendfsync always", "--maxmemory-policy noeviction"):
        assert option in script
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["redis"]["image"]
    assert redis["image"] == compose


# Scaling


def test_keda_looks_at_the_stream_of_jobs() -> None:
    scaled, authentication = objects((FOLDER / "keda" / "scaling.yaml").read_text())
    assert (scaled["kind"], authentication["kind"]) == ("ScaledObject", "TriggerAuthentication")
    (trigger,) = scaled["spec"]["triggers"]
    facts = trigger["metadata"]
    assert facts["stream"] == keys.jobs("FINGERPRINT")
    assert "consumerGroup" not in facts, "its lag says nothing: entries are not taken in their order"
    assert int(facts["streamLength"]) > 0
    assert all(isinstance(value, str) for value in facts.values()), "KEDA takes strings only"
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == "everlong"
    assert scaled["spec"]["minReplicaCount"] <= scaled["spec"]["maxReplicaCount"]


def test_only_keda_says_how_many_servers_there_are_where_it_does() -> None:
    done = run(program("kubectl"), "kustomize", str(FOLDER / "keda"))
    (deployment,) = [one for one in objects(done.stdout) if one["kind"] == "Deployment"]
    assert "replicas" not in deployment["spec"]


def test_the_gpu_overlay_requests_a_gpu() -> None:
    done = run(program("kubectl"), "kustomize", str(FOLDER / "gpu"))
    (deployment,) = [one for one in objects(done.stdout) if one["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert container["image"].endswith(":cuda")
    assert {"name": "EVERLONG_DEVICE", "value": "cuda"} in container["env"]
    assert {"name": "EVERLONG_DRAIN_SECONDS", "value": "30"} in container["env"]  # the base's are there, too


# The page


def test_the_pages_example_secret_is_valid(tmp_path: Path) -> None:
    page = (FOLDER / "README.md").read_text()
    (made,) = re.findall(r'--from-literal=admin_key="(.*)"\n', page)
    done = run("bash", "-c", f'printf %s "{made}"')
    assert is_secret(done.stdout), done
    named = set(re.findall(r"--from-literal=(\w+)=", page))
    assert named == {"redis_password", "everlong_redis_url", "admin_key"}
    assert f"Kubernetes {OLDEST}" in page
