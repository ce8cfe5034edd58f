"""The JavaScript client: its own tests, against a real server, its types, and its package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.js.conftest import run
from tests.process import Server

pytestmark = pytest.mark.long


def test_the_clients_own_tests_pass(npm: Path, server: Server) -> None:
    run(npm / "js", "npx", "vitest", "run", EVERLONG_URL=server.url)


def test_types_check_and_the_package_is_complete(npm: Path) -> None:
    run(npm / "js", "npx", "tsc", "--noEmit")
    packed = run(npm / "js", "npm", "pack", "--dry-run", "--json", "--loglevel=silent")
    (package,) = json.loads(packed[packed.index("[\n") :])
    files = {file["path"] for file in package["files"]}
    assert {"dist/index.js", "dist/index.d.ts", "dist/openapi.d.ts", "README.md", "package.json"} <= files
    assert not any(path.startswith(("src", "test")) for path in files)
    code = "import { Everlong } from 'everlong-client'; console.log(new Everlong().baseUrl)"
    assert run(npm, "node", "--input-type=module", "--eval", code).strip() == "http://127.0.0.1:8080"
