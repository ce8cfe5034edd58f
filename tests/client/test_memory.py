"""A session's memory as a value, a table and a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner, Result

from everlong_client import Memory, MemoryDocument, MemoryLayer, MemoryPart, MemoryPhrase, NotFoundError, Quote
from everlong_client.cli.main import app
from tests.client.fake_server import Fake, FakeServer

CONTRACT = json.loads((Path(__file__).parents[2] / "clients" / "openapi.json").read_text())

COMMON = {"session": "ses_1", "object": "session.memory", "segments": 4, "segment_length": 300, "open": 7}
COMMON |= {"tokens": 1200, "bytes": 73_728, "documents": [{"document": "doc_1", "start": 4, "end": 1100}]}
PLAIN = {"layer": None, "change": None, "bytes": None, "half_life": None}
QUOTE = {
    "document": "doc_1",
    "start": 3,
    "end": 18,
    "start_byte": 3,
    "end_byte": 19,
    "start_token": 1,
    "end_token": 6,
    "text": "Call\n me Ishmaël",
}
WINDOW = COMMON | {
    "memory": "window",
    "layers": [],
    "parts": [
        PLAIN | {"name": "sinks", "start": 0, "end": 32, "slots": 32, "used": 32.0, "age": 1175},
        PLAIN | {"name": "window", "start": 176, "end": 1200, "slots": 1024, "used": 1024.0, "age": 7},
    ],
}
RMT = COMMON | {
    "memory": "rmt",
    "layers": [],
    "parts": [
        PLAIN | {"name": "memory", "start": 0, "end": 1200, "slots": 16, "used": 6.25, "age": 7, "change": 0.125}
    ],
}
ARMT = RMT | {
    "memory": "armt",
    "parts": [RMT["parts"][0] | {"name": "associations", "layer": n, "slots": 384, "used": n * 9.5} for n in range(3)],
}
INFINITE = COMMON | {
    "memory": "infinite",
    "parts": [PLAIN | {"name": "signal", "start": 0, "end": 1200, "slots": 512, "used": 512.0, "age": 7}],
    "layers": [
        {
            "layer": 0,
            "edges": [0.0, 300.0, 600.0, 900.0, 1200.0],
            "attention": [0.1, 0.2, 0.6, 0.1],
            "phrases": [],
        },
        {
            "layer": 1,
            "edges": [0.0, 40.0, 48.0, 900.0, 1200.0],
            "attention": [0.25, 0.3, 0.25, 0.2],
            "phrases": [
                {"start": 40, "end": 48, "space": 0.25, "quote": QUOTE},
                {"start": 1110, "end": 1118, "space": 0.125, "quote": None},
            ],
        },
    ],
}
KINDS = {"window": WINDOW, "rmt": RMT, "armt": ARMT, "infinite": INFINITE}


@pytest.fixture
def run(server: FakeServer) -> Callable[..., Result]:
    server.fake.session([])

    def run(*args: str | Path) -> Result:
        environment = {"EVERLONG_URL": server.url}
        return CliRunner().invoke(app, ["memory", "ses_1", *map(str, args)], env=environment)

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_memories_of_these_tests_match_the_openapi_schema(kind: str):
    schema = {"$ref": "#/components/schemas/SessionMemory", "components": CONTRACT["components"]}
    jsonschema.validate(KINDS[kind], schema)


def test_memory(client: Any, fake: Fake, session: str):
    fake.memory = INFINITE | {"from_the_future": 1}
    seen = client.sessions.memory(session)
    assert isinstance(seen, Memory)
    assert (seen.session, seen.memory, seen.tokens, seen.segments, seen.open) == (session, "infinite", 1200, 4, 7)
    assert seen.documents == (MemoryDocument(document="doc_1", start=4, end=1100),)
    assert seen.parts == (MemoryPart(name="signal", start=0, end=1200, slots=512, used=512, age=7),)
    phrases = (MemoryPhrase(start=40, end=48, space=0.25, quote=Quote(**QUOTE)), MemoryPhrase(start=1110, end=1118, space=0.125))  # fmt: skip
    assert seen.layers[1] == MemoryLayer(
        layer=1, edges=(0, 40, 48, 900, 1200), attention=(0.25, 0.3, 0.25, 0.2), phrases=phrases
    )
    fake.memory = INFINITE | {"layers": [INFINITE["layers"][0] | {"attention": None}]}
    assert client.sessions.memory(session).layers[0].attention is None
    with pytest.raises(NotFoundError):
        client.sessions.memory("ses_9")


def test_the_table_of_an_infinite_former(run: Callable[..., Result], fake: Fake):
    fake.memory = INFINITE
    result = run()
    assert result.exit_code == 0, result.stderr
    assert result.stdout.splitlines() == [
        "infinite: 1,200 tokens read in 4 segments of 300, 7 in the open one; 73.7 kB",
        "doc_1 is tokens 4 – 1,100",
        "",
        "part       tokens  used   of  age  change",
        "signal  0 – 1,200   512  512    7",
        "",
        "layer  half of the attention  space  most space",
        "0                  600 – 900         all have the same",
        "1                     0 – 48  25.0%  “Call me Ishmaël”",
    ]
    fake.memory = INFINITE | {"layers": [INFINITE["layers"][1] | {"attention": None, "phrases": [INFINITE["layers"][1]["phrases"][1]]}]}  # fmt: skip
    assert run().stdout.splitlines()[-1].split() == ["1", "12.5%", "1,110", "–", "1,118"]


@pytest.mark.parametrize(
    ("memory", "lines"),
    [
        (WINDOW, ["sinks        0 – 32     32     32  1,175", "window  176 – 1,200  1,024  1,024      7"]),
        (RMT, ["memory  0 – 1,200   6.2  16    7   12.5%"]),
        (
            ARMT,
            [f"associations {n}  0 – 1,200  {used:>4}  384    7   12.5%" for n, used in enumerate(("0", "9.5", "19"))],
        ),
    ],
    ids=["window", "rmt", "armt"],
)
def test_the_table_of_other_memories(run: Callable[..., Result], fake: Fake, memory: dict, lines: list[str]):
    fake.memory = memory
    assert run().stdout.splitlines()[4:] == lines


def test_control_sequences_of_a_text_do_not_reach_the_terminal(run: Callable[..., Result], fake: Fake):
    phrase = INFINITE["layers"][1]["phrases"][0] | {"quote": QUOTE | {"text": "safe\x1b]0;owned\x07 text"}}
    fake.memory = INFINITE | {"layers": [INFINITE["layers"][1] | {"phrases": [phrase]}]}
    assert "“safe]0;owned text”" in run().stdout


def drawn(run: Callable[..., Result], fake: Fake, memory: dict, file: Path) -> bytes:
    fake.memory = memory
    result = run("--png", file)
    assert (result.exit_code, result.stdout) == (0, ""), result.stderr
    return file.read_bytes()


@pytest.mark.long
def test_the_picture_of_every_kind_shows_what_is_in_it(run: Callable[..., Result], fake: Fake, tmp_path: Path):
    pictures = {kind: drawn(run, fake, memory, tmp_path / f"{kind}.png") for kind, memory in KINDS.items()}
    assert len(set(pictures.values())) == len(KINDS)
    for kind, picture in pictures.items():
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        pixels = imread(tmp_path / f"{kind}.png")
        assert pixels.shape[:2] == (600, 900)
        assert float(pixels[..., :3].std()) > 0.1, "it is empty"
    assert drawn(run, fake, INFINITE, tmp_path / "again") == pictures["infinite"], "same memory, same picture"
    first, last = INFINITE["layers"]
    changed = {
        "rmt": RMT | {"parts": [RMT["parts"][0] | {"used": 9.0}]},
        "attention": INFINITE | {"layers": [first | {"attention": [0.7, 0.1, 0.1, 0.1]}, last]},
        "space": INFINITE | {"layers": [first | {"edges": [0.0, 3.0, 600.0, 900.0, 1200.0]}, last]},
        "no attention": INFINITE | {"layers": [layer | {"attention": None} for layer in (first, last)]},
        "forgotten": INFINITE | {"layers": [first | {"edges": [0.0, 900.0, 1000.0, 1100.0, 1200.0]}]},
        "one bin": INFINITE | {"layers": [first | {"edges": [0.0, 1200.0], "attention": [1.0]}]},
        "nothing read": RMT | {"tokens": 0, "segments": 0, "documents": [], "parts": [], "open": 0},
    }
    others = {name: drawn(run, fake, memory, tmp_path / "changed.png") for name, memory in changed.items()}
    assert len({*others.values(), *pictures.values()}) == len(others) + len(pictures)


def test_a_file_that_cannot_be_written(run: Callable[..., Result], fake: Fake, tmp_path: Path):
    fake.memory = RMT
    result = run("--png", tmp_path / "none" / "x.png")
    assert result.exit_code == 1
    assert result.stderr == f"error: {tmp_path}/none/x.png: No such file or directory\n"


def test_without_matplotlib_the_error_says_how_to_install_it(server: FakeServer, tmp_path: Path):
    """Runs in its own process. The table works without matplotlib."""
    server.fake.session([])
    server.fake.memory = RMT
    code = "import sys; sys.modules['matplotlib'] = None; from everlong_client.cli.main import main; main()"
    command = [sys.executable, "-c", code, "memory", "ses_1", "--url", server.url]
    table = subprocess.run(command, check=True, capture_output=True, text=True)
    assert table.stdout.startswith("rmt: 1,200 tokens read")
    done = subprocess.run([*command, "--png", str(tmp_path / "x.png")], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("error: --png needs matplotlib: pip install 'everlong-client[plot]'")
    assert not (tmp_path / "x.png").exists()
