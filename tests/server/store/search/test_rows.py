"""Rows of tables are found, shown and cut whole, with the row that names the columns."""

from __future__ import annotations

import io

import pytest

from everlong_server.store.search import sentences
from everlong_server.store.search.passages import Passage
from everlong_server.store.search.ranking import Indexed
from everlong_server.store.search.rows import rows
from everlong_server.store.search.splitting import split

HEADER = "order,date,customer,town,product,quantity,price,payment,status,remark\n"
ORDERS = [
    f'K{n + 500},2026-03-{n % 28 + 1:02},Ada Unwin,Ayr,"Filter coffee, 250 g",{n},7.20,card,shipped,leave it with no. {n}. Ring twice. Thanks\n'
    for n in range(40)
]
KINDS = {
    "csv": HEADER + "".join(ORDERS),
    "semicolons": (HEADER + "".join(ORDERS)).replace(",", ";"),
    "tabs": "".join(
        f"Flat {n}\tMs. Ada Unwin. Ground floor, with a garden. Let since May\t{n * 100}\n" for n in range(40)
    ),
    "markdown": "| flat | rent |\n|---|---|\n"
    + "".join(f"| {n} | {n * 100} pounds. Let to Ms. Unwin. Paid in cash. |\n" for n in range(40)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_row_is_cut(kind: str) -> None:
    text = KINDS[kind]
    pieces = [piece.text for piece in split(io.BytesIO(text.encode()))]
    assert "".join(pieces) == text
    assert len(pieces) > 3
    for piece in pieces:
        parts = [piece[start:end] for start, end in sentences.cut(piece)]
        assert "".join(parts) == piece
        assert all(part.endswith("\n") for part in parts)
        assert max(part.count("\n") for part in parts) <= 2, "only short rows share a sentence"


PROSE = [
    "Anna, Bert, Carl and Dora met in May, in Ayr, at noon; they talked.\n", "It cost 1,250,000 pounds.\n", "See (a, b, c, d).\n", "Words\n",
    "\tAn indented paragraph.\n", "Yes | no\n",
]  # fmt: skip


@pytest.mark.parametrize("line", PROSE)
def test_prose_is_no_row(line: str) -> None:
    assert list(rows(f"Before it.\n{line}After it.\n")) == []


def test_columns_are_named_above_the_rows_that_are_found() -> None:
    text = KINDS["csv"]
    pieces = [
        Passage("d", p.start, p.end, p.start_byte, p.end_byte, p.text, score=1 / n, share=1.0)
        for n, p in enumerate(split(io.BytesIO(text.encode())), 1)
    ]
    row = [order for order in ORDERS if order in pieces[6].text][-1]
    index = {"d": Indexed(None, len(pieces), len(text), "en")}
    found = sentences.ordered(pieces[5:7], {row.partition(",")[0]: 1.0}, None, index, pieces[0])
    assert [passage.text for passage in found[:3]] == [row, found[1].text, HEADER]
