"""The values of a table on a page stay in their columns, also beside cells that are empty or span others."""

from __future__ import annotations

import pytest

from tests.server.engine.documents.formats.reading import text_of

LONG = "The tenant pays the rent. " * 20
TABLES = {
    "a cell that spans rows": (
        "<thead><tr><th>Country<th>City<th>Pop</thead><tr><td rowspan=2>France<td>Paris<td>2<tr><td>Lyon<td>1<tr><td>Peru<td>Lima<td>10",
        ["Country City Pop", "France Paris 2", " Lyon 1", "Peru Lima 10"],
    ),
    "cells that span columns": (
        "<tr><th><th colspan=2>2023<th colspan=2>2024<tr><th>Region<th>H1<th>H2<th>H1<th>H2<tr><td>North<td>1<td><td>3<td>4",
        [" 2023  2024 ", "Region H1 H2 H1 H2", "North 1  3 4"],
    ),
    "a cell that spans rows and columns": ("<tr><td>a<td colspan=2 rowspan=2>b<td>c<tr><td>d<td>e", ["a b c", "d  e"]),
    "a last cell that spans rows": ("<tr><td>a<td rowspan=2>b<tr><td>c", ["a b", "c"]),
    "a row that cells above take": ("<tr><td rowspan=2>a<td rowspan=2>b<tr><tr><td>c<td>d", ["a b", "", "c d"]),
    "a cell down to the end of its group": (
        "<tbody><tr><td rowspan=0>a<td>b<tr><td>c<tr><td>d</tbody><tbody><tr><td>e<td>f", ["a b", " c", " d", "e f"],
    ),
    "a span of more columns than there are": ("<tr><td>a<td colspan=99>b<tr><td>c<td>d", ["a b", "c d"]),
    "a span of a whole row": ("<tr><td colspan='100%'>a<td>b<tr><td>c<td>d", ["a  b", "c d"]),
    "a column that no cell begins in": ("<tr><td colspan=3>a<td>b<tr><td colspan=2>c<td>d<td>e", ["a  b", "c d e"]),
    "a wide cell down to the end": ("<tr><td>a<td colspan=1000 rowspan=0>b<td>c<tr><td>d<td>e", ["a b c", "d  e"]),
    "cells above that overlap": ("<tr><td>a<td rowspan=2>b<tr><td colspan=3>c<td>d<tr><td>e<td>f", ["a b", "c  d", "e f"]),
    "a title over all columns": ("<tr><th colspan=2>Rents<tr><td>a<td>b", ["Rents", "a b"]),
    "spans that are no numbers": ("<tr><td colspan=x rowspan=-2>a<td colspan=''>b<tr><td>c<td>d", ["a b", "c d"]),
    "an empty corner": ("<tr><td><td>2023<td>2024<tr><td>North<td>1<td>2", [" 2023 2024", "North 1 2"]),
    "an empty last cell": ("<tr><td>a<td>b<tr><td>c<td>", ["a b", "c "]),
    "paragraphs in cells": ("<tr><td><p>a</p><td><p>b</p><p>c</p><td><p>d</p>", ["a b\xa0c d"]),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "lines"), TABLES.values(), ids=TABLES)
def test_values_stay_in_their_columns(rows: str, lines: list[str]) -> None:
    text = text_of(f"<html><body><table>{rows}</table>".encode())
    expected = [line.replace(" ", "\t").replace("\xa0", " ") for line in lines if line]
    assert [line for line in text.split("\n") if line] == expected


HEADED = {
    "headings": "<tr><th>ID<th>Text<th>Who",
    "a head": "<thead><tr><td>ID<td>Text<td>Who</thead>",
    "a caption": "<caption>ID</caption><tr><td>ID<td>Text<td>Who",
}


@pytest.mark.parametrize("head", HEADED.values(), ids=HEADED)
def test_a_table_with_headings_stays_one_with_a_long_cell(head: str) -> None:
    page = f"<html><body><table>{head}<tr><td>R1<td>{LONG}<td>Ann<tr><td>R2<td><td>Bo</table>"
    assert text_of(page.encode()).endswith(f"ID\tText\tWho\nR1\t{LONG.strip()}\tAnn\nR2\t\tBo")


@pytest.mark.parametrize("kind", ["td", "th"])
def test_a_table_without_headings_that_arranges_a_page_becomes_paragraphs(kind: str) -> None:
    page = f"<html><body><table><tr><{kind}>Menu<{kind}>{LONG}</table>"
    assert text_of(page.encode()) == f"Menu\n{LONG.strip()}"


def test_the_values_of_a_table_in_a_cell_take_no_columns() -> None:
    page = b"<html><body><table><tr><th>a<th>b<tr><td>c<table><tr><td>d<td>e</table><td>f</table>"
    assert text_of(page) == "a\tb\nc d e\tf"


def test_cells_that_begin_anywhere_form_no_columns() -> None:
    stairs = "".join(f"<tr><td colspan={width}>a<td>b" for width in range(1, 200))
    assert text_of(f"<html><body><table>{stairs}</table>".encode()) == "\n".join(["a\tb"] * 199)


def test_a_wide_row_keeps_its_columns() -> None:
    row = "".join(f"<td>{number}" for number in range(150))
    page = f"<html><body><table><tr>{row}<tr><td>a<td colspan=148>b<td>c</table>"
    assert text_of(page.encode()).splitlines()[1] == "a\tb" + "\t" * 148 + "c"


def test_a_table_of_empty_cells_is_no_text() -> None:
    assert text_of(b"<html><body><table><tr><td><td></table><h1>Dues</h1>") == "Dues"
