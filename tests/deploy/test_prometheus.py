"""What Prometheus scrapes exists, and the alerts speak of metrics that the server has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from everlong_server.app import create_app
from everlong_server.observability.metrics import Metrics
from everlong_server.settings import Settings
from tests.deploy.files import ROOT, program, run

FOLDER = ROOT / "deploy" / "prometheus"
CONFIG = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
RULES = [rule for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
TESTS = Path(__file__).with_name("alerts_test.yml")


def test_the_target_is_the_server() -> None:
    (found,) = [config for job in CONFIG["scrape_configs"] for config in job["dns_sd_configs"]]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (service,) = found["names"]
    assert services[service]["environment"]["EVERLONG_PORT"] == str(found["port"])
    assert CONFIG["rule_files"] == ["alerts.yml"]


@pytest.fixture(scope="module")
def routes() -> set[str]:
    app = create_app(Settings(), "redis://unused", load=lambda: pytest.fail("nothing is loaded"))
    return set(app.openapi()["paths"])


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_alerts_name_real_metrics_labels_and_routes(rule: dict[str, str], routes: set[str]) -> None:
    collectors = {
        metric.name + suffix: collector
        for collector in vars(Metrics()).values()
        if hasattr(collector, "describe")
        for metric in collector.describe()
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"]}.get(metric.type, [""])
    }
    exposed = Metrics().render().decode()
    for name, selector in re.findall(r"\b(everlong_\w+)(?:\{(.*?)\})?", rule["expr"]):
        assert name in collectors
        assert re.search(rf"# TYPE {re.sub('_(bucket|count|sum)$', '', name)} ", exposed)
        for label, value in re.findall(r'(\w+)[=!]~?"(.*?)"', selector):
            assert label in collectors[name]._labelnames
            if label == "route":
                assert set(value.split("|")) <= routes


def test_grafana_finds_its_data_source_and_dashboard() -> None:
    folder = ROOT / "deploy" / "grafana"
    (source,) = yaml.safe_load((folder / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services[urlsplit(source["url"]).hostname]["image"].startswith("prom/prometheus")
    assert source["jsonData"]["timeInterval"].startswith(CONFIG["global"]["scrape_interval"])
    (provider,) = yaml.safe_load((folder / "provisioning" / "dashboards" / "everlong.yml").read_text())["providers"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert provider["options"]["path"] == mounts["./deploy/grafana/dashboards"]
    dashboard = json.loads((folder / "dashboards" / "everlong.json").read_text())
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (folder / "dashboards" / Path(home).name).is_file()
    used = {target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel["targets"]}
    assert used == {source["uid"]}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells


def test_promtool_accepts_the_configuration() -> None:
    result = run(program("promtool"), "check", "config", FOLDER / "prometheus.yml")
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    file = tmp_path / "alerts_test.yml"
    file.write_text(TESTS.read_text().replace("[ALERTS]", f"[{FOLDER / 'alerts.yml'}]"))
    result = run(program("promtool"), "test", "rules", file)
    assert result.returncode == 0, result.stdout + result.stderr


def test_each_alert_is_tested() -> None:
    assert {rule["alert"] for rule in RULES} == set(
        re.findall(r'alertname="(\w+)",alertstate="firing"', TESTS.read_text())
    )
