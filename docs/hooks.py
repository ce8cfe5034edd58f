"""mkdocs hooks: generate reference tables from the code, and add the repository's own texts to the site.

The text between `<!-- settings -->`, `<!-- metrics -->`, `<!-- redis -->` or `<!-- api -->` and `<!-- end -->` on a page is replaced by that
reference.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from everlong_server.cli.setting_groups import GROUPS
from everlong_server.observability.metrics import Metrics
from everlong_server.settings import PREFIX, Settings
from everlong_server.store.redis.keys import KEYS

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "clients/js/README.md": "clients-js.md",
    "clients/python/README.md": "clients-python.md",
    "deploy/README.md": "containers.md",
    "deploy/kubernetes/README.md": "kubernetes.md",
}
"""Texts of the repository that are pages of the site, and their names there. README.md corresponds to an existing page."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the repository's own texts to the site."""
    for source, target in ELSEWHERE.items():
        if source != "README.md":
            files.append(File.generated(config, target, content=relinked((ROOT / source).read_text(), source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in the references, and turn links into the repository into links within the site."""
    for name, reference in REFERENCES.items():
        before, begin, rest = markdown.partition(f"<!-- {name} -->")
        if begin:
            _, _, after = rest.partition("<!-- end -->")
            markdown = before + "\n".join(reference()) + after
    if page.file.src_uri in ELSEWHERE.values() and page.file.src_uri != "index.md":
        return markdown  # relinked when it was added
    return relinked(markdown, f"docs/{page.file.src_uri}")


def relinked(markdown: str, source: str) -> str:
    """Return `markdown` of the file `source` with its relative links changed to the site's pages. A link to a file that is not
    on the site becomes plain text."""

    folder = os.path.dirname(ELSEWHERE.get(source, source.removeprefix("docs/")))

    def relink(link: re.Match[str]) -> str:
        label, target, anchor = link["label"], link["target"], link["anchor"] or ""
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        if path in ELSEWHERE or (path.startswith("docs/") and (ROOT / path).is_file()):
            on_site = os.path.relpath(ELSEWHERE.get(path, path.removeprefix("docs/")), folder or ".")
            return f"[{label}]({on_site}{anchor})"
        return label if (ROOT / path).exists() else link[0]  # mkdocs complains of what leads nowhere

    return re.sub(r"\[(?P<label>[^\]]*)\]\((?P<target>[^):#\s]+)(?P<anchor>#[^)]*)?\)", relink, markdown)


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def settings() -> Iterator[str]:
    """Yield the table of all settings."""
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    for name in (name for group in GROUPS.values() for name in group):
        field = Settings.model_fields[name]
        default = "in your home folder" if field.default_factory and name.endswith("_dir") else field.get_default(
            call_default_factory=True
        )  # fmt: skip
        shown = {None: "unset", "": "empty"}.get(default) if default is None or default == "" else f"`{default}`"
        yield f"| `{PREFIX}{name.upper()}` | {_cell(shown or default)} | {_cell(field.description)} |"


def metrics() -> Iterator[str]:
    """Yield the table of all metrics."""
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    for collector in vars(Metrics()).values():
        for metric in collector.describe() if hasattr(collector, "describe") else ():
            name = metric.name + ("_total" if metric.type == "counter" else "")
            labels = ", ".join(f"`{label}`" for label in collector._labelnames)
            yield f"| `{name}` | {metric.type} | {labels} | {_cell(metric.documentation)} |"


def redis() -> Iterator[str]:
    """Every key, from `store/redis/keys.py`."""
    yield "| key | type | holds | expires |"
    yield "|---|---|---|---|"
    for key in KEYS:
        yield f"| `{key.pattern}` | {key.type} | {_cell(key.holds)}{' (encrypted)' if key.sealed else ''} | {_cell(key.ttl)} |"


def api() -> Iterator[str]:
    """Yield the reference of every endpoint and object in `clients/openapi.json`."""
    document = json.loads((ROOT / "clients" / "openapi.json").read_text())
    by_tag: dict[str, list[tuple[str, str, dict[str, Any]]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            by_tag.setdefault((operation.get("tags") or ["other"])[0], []).append((method.upper(), path, operation))
    for tag in sorted(by_tag):
        yield f"\n## {TITLES.get(tag, tag.capitalize())}"
        for method, path, operation in by_tag[tag]:
            yield f"\n### `{method} {path}`\n"
            yield operation.get("description") or operation.get("summary", "")
            yield from _parameters(operation.get("parameters", []))
            yield from _bodies(operation)
    yield "\n## Objects"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield f"\n### {name}\n"
        yield schema.get("description", "")
        if schema.get("properties"):
            yield "\n| field | type | meaning |\n|---|---|---|"
            for field, part in schema["properties"].items():
                required = " (required)" if field in schema.get("required", []) else ""
                meaning = part.get("description", "")
                if "default" in part and part["default"] is not None:
                    meaning += f" Default: `{json.dumps(part['default'], ensure_ascii=False)}`."
                yield f"| `{field}`{required} | {_type(part)} | {_cell(meaning)} |"


def _parameters(parameters: list[dict[str, Any]]) -> Iterator[str]:
    if parameters:
        yield "\n| parameter | in | type | meaning |\n|---|---|---|---|"
        for one in parameters:
            required = " (required)" if one.get("required") else ""
            meaning = one.get("description") or one["schema"].get("description", "")
            yield f"| `{one['name']}`{required} | {one['in']} | {_type(one['schema'])} | {_cell(meaning)} |"


def _bodies(operation: dict[str, Any]) -> Iterator[str]:
    yield "\n| | content | meaning |\n|---|---|---|"
    for media, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"| request | `{media}` | {_type(content.get('schema', {}))} |"
    errors = []
    for status, response in operation["responses"].items():
        contents = response.get("content", {})
        if any(content.get("schema", {}).get("$ref", "").endswith("/ErrorBody") for content in contents.values()):
            errors.append(status)
            continue
        meaning = response.get("description", "").replace("Successful Response", "")
        for media, content in (contents or {"": {}}).items():
            shown = _type(content["schema"]) if content.get("schema") else ""
            yield f"| {status} | {f'`{media}`' if media else ''} | {_cell(f'{meaning} {shown}')} |"
    if errors:
        yield f"| {', '.join(errors)} | `application/json` | [ErrorBody](#errorbody) |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[1]
        return f"[{name}](#{name.lower()})"
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema:
            return " or ".join(_type(part) for part in schema[union])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"array of {_type(schema.get('items', {}))}"
    limits = [f"{sign} {schema[key]}" for key, sign in LIMITS.items() if key in schema]
    return " ".join([schema.get("type", "any"), *limits])


LIMITS = {
    "minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<",
    "minLength": "of at least", "maxLength": "of at most",
}  # fmt: skip
TITLES = {"openai": "OpenAI's API"}
REFERENCES: dict[str, Callable[[], Iterator[str]]] = {
    "settings": settings,
    "metrics": metrics,
    "api": api,
    "redis": redis,
}
