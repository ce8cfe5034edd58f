"""One version everywhere: packages, clients, image and API."""

import json
import re
import tomllib

from everlong_client import __version__
from tests.pages import ROOT


def test_all_parts_have_the_same_version():
    def project(folder: str) -> dict:
        return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]

    versions = {folder: project(folder)["version"] for folder in (".", "lab", "clients/python")}
    versions["API"] = json.loads((ROOT / "clients/openapi.json").read_text())["info"]["version"]
    versions["image"] = re.search(r'image\.version="([^"]+)"', (ROOT / "Dockerfile").read_text())[1]
    # npm writes the development release of a version in another form.
    javascript = json.loads((ROOT / "clients/js/package.json").read_text())["version"]
    versions["clients/js"] = javascript.replace("-dev.", ".dev")
    assert set(versions.values()) == {__version__}, versions

    for folder, package in ((".", "everlong-client"), ("lab", "everlong")):
        assert f"{package}=={__version__}" in project(folder)["dependencies"]
