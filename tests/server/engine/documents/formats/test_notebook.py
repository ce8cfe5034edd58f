"""A Jupyter notebook becomes its text, its code and what the code printed, without pictures and without JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everlong_server.engine.documents.formats.catalogue import detect
from tests.server.engine.documents.formats.reading import notes_of, text_of

PICTURE = {
    "data": {"image/png": "iVBORw0KGgo=", "text/plain": ["<Figure size 640x480 with 1 Axes>"]},
    "output_type": "display_data",
}


def notebook(*cells: dict[str, Any]) -> bytes:
    return json.dumps({"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()


def markdown(*lines: str, **more: Any) -> dict[str, Any]:
    return {"cell_type": "markdown", "metadata": {}, "source": list(lines), **more}


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": 1, "metadata": {}, "outputs": list(outputs), "source": source}


def printed(*lines: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": list(lines)}


def test_each_cell_is_followed_by_what_it_printed() -> None:
    result = {
        "data": {"text/html": ["<table>…</table>"], "text/plain": ["   sales\\n", "0     12"]},
        "output_type": "execute_result",
    }
    data = notebook(markdown("# Sales\n", "\n", "In euros."), code("total = 12\nprint(total)", printed("12\n"), result))
    assert text_of(data, "sales.ipynb").split("\n\n", 2) == [
        "# Sales", "In euros.", "total = 12\nprint(total)\n\n[Output]\n12\n\n[Output]\n   sales\\n0     12",
    ]  # fmt: skip
    assert notes_of(data, "sales.ipynb") == []


def test_pictures_are_noted_and_their_python_names_left_out() -> None:
    data = notebook(code("plot()", PICTURE, PICTURE), markdown("See ![a](a.png)", attachments={"a.png": {}}))
    assert text_of(data, "a.ipynb") == "plot()\n\nSee ![a](a.png)"
    assert notes_of(data, "a.ipynb") == ["left out: pictures (3)"]


def test_the_data_of_pasted_pictures_are_no_text() -> None:
    pasted = (
        "![image.png](data:image/png;base64,iVBORw0KGgo=) and <img src='data:image/svg+xml;base64,PHN2Zz4=' alt='b'>"
    )
    shown = {"data": {"text/markdown": "**Map** ![](data:image/jpeg;base64,/9j/4AA=)"}, "output_type": "display_data"}
    data = notebook(markdown(pasted), code("icon = 'data:image/png;base64,iVBORw0KGgo='", shown))
    assert text_of(data, "a.ipynb").split("\n\n") == [
        "![image.png]() and <img src='' alt='b'>", "icon = 'data:image/png;base64,iVBORw0KGgo='", "[Output]\n**Map** ![]()",
    ]  # fmt: skip
    assert notes_of(data, "a.ipynb") == ["left out: pictures (3)"]


def test_json_is_an_output_and_other_forms_are_noted() -> None:
    tree = {"text/plain": "<IPython.core.display.JSON object>", "application/json": {"rent": [300, "größe"]}}
    other = {"application/vnd.vega.v5+json": {"data": [1]}}
    data = notebook(code("show()", *({"data": each, "output_type": "display_data"} for each in (tree, other))))
    assert text_of(data, "a.ipynb") == 'show()\n\n[Output]\n{"rent": [300, "größe"]}'
    assert notes_of(data, "a.ipynb") == ["left out: outputs in other forms (1)"]


def test_errors_tables_and_progress_bars_are_as_they_are_shown() -> None:
    error = {
        "ename": "KeyError",
        "evalue": "'rent'",
        "output_type": "error",
        "traceback": ["\x1b[0;31mKeyError\x1b[0m …"],
    }
    table = {"data": {"text/html": "<table><tr><td>May</td><td>7</td></tr></table>"}, "output_type": "display_data"}
    data = notebook(code("run()", printed("  0%|\r 50%|\r100%|\n", "\x1b[32mdone\x1b[0m"), table, error))
    assert text_of(data, "a.ipynb").split("\n\n") == [
        "run()", "[Output]\n100%|\ndone", "[Output]\nMay\t7", "[Output]\nKeyError: 'rent'",
    ]  # fmt: skip


def test_a_page_is_read_if_its_text_is_only_the_name_of_an_object() -> None:
    page = {"text/plain": "<IPython.core.display.HTML object>", "text/html": "<p>Rent is due.</p>"}
    assert text_of(notebook(code("show()", {"data": page})), "a.ipynb") == "show()\n\n[Output]\nRent is due."


def test_notebooks_of_the_third_format_are_read() -> None:
    cells = [
        {"cell_type": "heading", "level": 2, "source": ["Rent"]},
        {"cell_type": "code", "input": ["1 + 1"], "outputs": [{"output_type": "pyout", "text": ["2"]}]},
    ]
    data = json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}]}).encode()
    assert text_of(data, "old.ipynb") == "Rent\n\n1 + 1\n\n[Output]\n2"


@pytest.mark.parametrize(
    "data", [b'{"cells": [', b'{"cells": 5}', b'{"a": 1}', b'{"worksheets": [3]}', b'{"cells": ' + b"[" * 5000]
)
def test_what_is_no_notebook_is_shown_as_it_is(data: bytes) -> None:
    assert text_of(data, "a.ipynb") == data.decode()
    assert notes_of(data, "a.ipynb") == ["it is no Jupyter notebook that can be read, so the text is its source"]


def test_values_of_other_types_do_no_harm() -> None:
    odd = {"cell_type": 3, "source": 7, "outputs": [None, {"data": [1], "text": {"a": 1}}], "attachments": 5}
    assert text_of(notebook(odd, {}), "a.ipynb").split("\n\n") == ["7", "[Output]\n{'a': 1}"]


def test_a_notebook_is_told_by_its_name_or_its_beginning() -> None:
    data = notebook(markdown("Words"))
    assert [detect(data, name) for name in ("a.ipynb", None, "a.txt", "a.json")] == ["ipynb", "ipynb", "ipynb", None]
    assert detect(b'{"cells": 1}') is None
    assert detect(data, None, "application/x-ipynb+json") == "ipynb"
