"""The modules of clients/js and clients/web import each other without cycles."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

CLIENTS = Path(__file__).parents[2] / "clients"
RELATIVE = re.compile(r"""(?:\bfrom|\bimport)\s*\(?\s*["'](\.[^"']*)\.js["']""")


def imports(folder: Path) -> dict[str, set[str]]:
    """Return each module under `folder` with the modules of the folder that it imports, type imports included."""
    modules = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.ts*")}
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = {(path.parent / target).resolve() for target in RELATIVE.findall(path.read_text())}
        graph[name] = {target.relative_to(folder.resolve()).as_posix() for target in targets}
        assert graph[name] <= modules.keys(), f"{name} imports a module that does not exist"
    return graph


@pytest.mark.parametrize("client", ["js", "web"])
def test_there_is_no_import_cycle(client: str) -> None:
    graph = imports(CLIENTS / client / "src")
    assert sum(map(len, graph.values())) > 10, "the imports were not found"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import cycle in clients/{client}/src: {' -> '.join(reversed(error.args[1]))}")


def test_a_cycle_is_found(tmp_path: Path) -> None:
    (tmp_path / "views").mkdir()
    (tmp_path / "a.ts").write_text('import type { B } from "./views/b.js";\n')
    (tmp_path / "views" / "b.tsx").write_text('export { a } from "../a.js";\n')
    assert imports(tmp_path) == {"a": {"views/b"}, "views/b": {"a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(imports(tmp_path)).prepare()
