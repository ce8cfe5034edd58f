"""The guide's tables name every field of a request to OpenAI's, Anthropic's and Ollama's APIs, and every parameter of the MCP tools.

A table names its endpoints in its header (`field of …`), or row by row in a first column `endpoint` or `tool`. Fields are in backticks:
"`a`: `b`, `c`; `d`" names a, a.b, a.c and d. "(everywhere)" names all fields whose paths end like that. If a field is ignored, or works "as in" another table, this holds for the fields inside it.
"""

from __future__ import annotations

import copy
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.pages import ROOT

DOCUMENT = json.loads((ROOT / "clients" / "openapi.json").read_text())
Fields = dict[str, set[str]]
"""The paths of the fields of each endpoint."""


def fields(schema: Any, document: Any, path: str = "", above: tuple[str, ...] = ()) -> set[str]:
    """Return the paths of all fields in a schema. The items of a list have the path of the list."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        return fields(document["components"]["schemas"][name], document, path, (*above, f'/{name}"'))
    found = set[str]()
    for name, inner in schema.get("properties", {}).items():
        found.add(path + name)
        if not any(each in json.dumps(inner) for each in above):  # a filter can contain filters
            found |= fields(inner, document, f"{path}{name}.", above)
    parts = [schema["items"]] if "items" in schema else [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    return found.union(*(fields(part, document, path, above) for part in parts))


def requests(document: Any, tag: str) -> Fields:
    """Return the fields and the query parameters of all endpoints of an API."""
    found: Fields = defaultdict(set)
    for path, methods in document["paths"].items():
        endpoint = re.sub(r"{\w+}", "{id}", path)
        for method in methods.values():
            if method["tags"] == [tag]:
                found[endpoint] |= {each["name"] for each in method.get("parameters", []) if each["in"] == "query"}
                for content in method.get("requestBody", {}).get("content", {}).values():
                    found[endpoint] |= fields(content["schema"], document)
    return found


def rows(page: str) -> Iterator[tuple[str, str, str]]:
    """Yield an endpoint, the cell with the names of its fields, and the cell that says what happens, for all rows of `page`."""
    text = (ROOT / "docs" / "guide" / f"{page}.md").read_text()
    for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        header, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        by_row = header[0] in ("endpoint", "tool") and len(header) == 3
        for *cells, happens in body:
            titled = [(title, cell) for title, cell in zip(header, cells, strict=False) if title[:10] == "field of `"]
            for title, cell in [(cells[0], cells[1])] if by_row else titled:
                yield from ((endpoint, cell, happens) for endpoint in re.findall("`(.+?)`", title))


def differences(page: str, known: Fields) -> set[str]:
    """Return the fields of `known` that the tables of `page` lack, and the fields that they name without reason."""
    named: Fields = defaultdict(set)
    wrong = set[str]()
    for endpoint, cell, happens in rows(page):
        every = known.get(endpoint, set())
        for part in cell.split(";"):
            outer, *inner = [re.findall("`(.+?)`", names) for names in part.split(": ")]
            found = {f"{above}.{name}" for above in outer for name in inner[0]} if inner else set(outer)
            if "(everywhere)" in cell:
                found = {path for path in every for name in found if f".{path}".endswith(f".{name}")}
            if happens.startswith(("ignored", "as in ")):  # a field inside such a field needs no row
                found |= {path for path in every for name in found if path.startswith(f"{name}.")}
            if not happens.startswith("refused"):
                wrong |= {f"{endpoint} has no {name}" for name in found - every}
            named[endpoint] |= found.union(outer)
    return wrong | {f"{endpoint}: no {name}" for endpoint, every in known.items() for name in every - named[endpoint]}


@pytest.mark.parametrize("page", ["openai", "anthropic", "ollama"])
def test_tables_name_every_field_of_a_request(page: str) -> None:
    assert not differences(page, requests(DOCUMENT, page))


async def test_tables_name_every_parameter_of_a_tool() -> None:
    server = pytest.importorskip("everlong_client.mcp.server").DocumentServer("http://127.0.0.1:8080")
    assert not differences("mcp", {tool.name: fields(tool.input_schema, {}) for tool in await server.list_tools()})


def test_new_and_removed_fields_are_found() -> None:
    document = copy.deepcopy(DOCUMENT)
    document["components"]["schemas"]["FilePart"]["properties"]["sparkle"] = {"type": "string"}
    del document["components"]["schemas"]["CreateResponse"]["properties"]["truncation"]
    assert differences("openai", requests(document, "openai")) == {
        "/v1/chat/completions: no messages.content.sparkle",
        "/v1/responses has no truncation",
    }
