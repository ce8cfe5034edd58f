"""Rows of tables are found, shown and cut whole, with the row that names the columns."""

from __future__ import annotations

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import pytest

from everlong_server.store.search import sentences
from everlong_server.store.search.query import Query
from everlong_server.store.search.ranking import Indexed
from everlong_server.store.search.rows import Tables, rows
from everlong_server.store.search.splitting import split
from everlong_server.store.texts.passage import Passage
from tests.server.store.search.shelf import Shelf

HEADER = "order,date,customer,town,product,quantity,price,payment,status,remark\n"
ORDERS = [
    f'K{n + 500},2026-03-{n % 28 + 1:02},Ada Unwin,Ayr,"Filter coffee, 250 g",{n},7.20,card,shipped,leave it with no. {n}. Ring twice. Thanks\n'
    for n in range(40)
]
KINDS = {
    "csv": HEADER + "".join(ORDERS),
    "semicolons": (HEADER + "".join(ORDERS)).replace(",", ";"),
    "figures": "".join(f"{n},2.50,{n}00,17,2026-03-01,{n * 7}.25,1000,{n * 13}\n" for n in range(60)),
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
    "\tAn indented paragraph.\n", "Yes | no\n", "Revenue was 1,234,567 pounds, costs 2,345,678 pounds, and the rest 1,100,000.\n",
    "Der Preis stieg von 3,5 auf 4,2 und dann auf 5,1 Prozent.\n", "1,000,000 people\n",
]  # fmt: skip


@pytest.mark.parametrize("line", PROSE)
def test_prose_is_no_row(line: str) -> None:
    assert list(rows(f"Before it.\n{line}After it.\n")) == []


TABLES = (
    "Rents\n\nflat\trent\tsince\n" + "".join(f"Flat {n}\t{n}00 pounds a month\tMay 20{n:02}\n" for n in range(30)) + "Some words.\n\nCosts\n\ncost\tsum\n"
    + "".join(f"Cost of repair {n}\t{n}000 euros\n" for n in range(30)) + "\ntwo\trows\nare\tno table\n"
)  # fmt: skip


def test_tables_are_found_from_piece_to_piece() -> None:
    for text in (TABLES, TABLES.rstrip() + "\nlast\ttable\na\tb\nc\td"):
        tables = Tables()
        found = [table for piece in split(io.BytesIO(text.encode())) for table in tables.of(piece)] + [*tables.finish()]
        headers = [text[table.start : table.header_end] for table in found]
        assert headers[:2] == ["flat\trent\tsince\n", "cost\tsum\n"]
        assert [text.encode()[table.start_byte : table.header_end_byte].decode() for table in found] == headers
        assert [text[: table.end].splitlines()[-1] for table in found][:2] == [
            "Flat 29\t2900 pounds a month\tMay 2029",
            "Cost of repair 29\t29000 euros",
        ]
        assert len(found) == 2 + text.endswith("d")


def test_the_row_that_names_the_columns_comes_before_the_rows_that_are_found(tmp_path: Path) -> None:
    shelf = Shelf(f"file://{tmp_path}")
    query = Query("What does repair 17 cost?", {"repair": 1.0, "17": 1.0})
    found = asyncio.run(shelf.passages.find([shelf.add(TABLES)], query, 96, by_sentences=True)).passages
    assert [passage.text for passage in found[:2]] == ["cost\tsum\n", "Cost of repair 17\t17000 euros\n"]


def test_rows_next_to_a_short_header_are_kept() -> None:
    text = "id\tname\n1\tAnn\n2\tBob of Ayr, by the sea\n" + "".join(
        f"{n}\tPerson number {n} of many\n" for n in range(3, 40)
    )
    pieces = [Passage("d", p.start, p.end, p.start_byte, p.end_byte, p.text) for p in split(io.BytesIO(text.encode()))]
    header = replace(pieces[0], end=8, end_byte=8, text="id\tname\n")
    index = {"d": Indexed(None, len(pieces), len(text), "en")}
    found = sentences.ordered(pieces, {"many": 1.0}, None, index, pieces[0], header=lambda sentence: header)
    assert sum(passage.end - passage.start for passage in found) == len(text)
    assert any("Ann" in passage.text for passage in found)


def test_a_first_row_of_several_pieces_is_known_whole() -> None:
    text = (
        "Words. " * 50
        + "\n"
        + "\t".join(f"column {n}" for n in range(50))
        + "\n"
        + "".join("\t".join("abcdefgh") + "\n" for _ in range(6))
    )
    tables = Tables()
    found = [table for piece in split(io.BytesIO(text.encode())) for table in tables.of(piece)] + [*tables.finish()]
    assert [text[table.start : table.header_end] for table in found] == [text.split("\n")[1] + "\n"]
