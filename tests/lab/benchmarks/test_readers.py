"""The comparison of readers: how a text is judged, and that the server finds all expected words of other programs' files."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from everlong_lab.benchmarks.formats import peers, readers, speed
from everlong_lab.cli.bench import bench
from tests import files

FORMATS = Path(__file__).parents[2] / "data" / "formats"


@pytest.mark.parametrize(
    ("case", "text", "verdict"),
    [
        ({"holds": ["Ada 300"], "lacks": []}, "| **Ada** | 300 |", "yes"),
        ({"holds": ["Ada", "Bo"], "lacks": []}, "Ada, Robot", "1/2"),
        ({"holds": ["5 < 6"], "lacks": []}, "5 < 6", "yes"),
        ({"holds": ["x"], "lacks": ["<p>"]}, "<p>x", "wrong words"),
        ({"holds": ["x"], "lacks": []}, None, "no text"),
        ({"holds": [], "lacks": [], "expect": "error"}, None, "yes"),
        ({"holds": [], "lacks": [], "expect": "error"}, "x", "read"),
    ],
)
def test_a_text_is_judged_by_its_words(case: dict[str, object], text: str | None, verdict: str) -> None:
    assert readers.verdict(case, text) == verdict


@pytest.mark.long
def test_the_server_finds_all_words_in_files_of_other_programs() -> None:
    report = readers.run(FORMATS, readers=["everlong"], progress=lambda line: None)
    assert [row for row in report.rows[:-1] if row["everlong"] != "yes"] == []
    assert report.rows[-1]["everlong"] == len(report.rows) - 1


def test_the_cost_of_a_conversion(tmp_path: Path) -> None:
    file, binary = tmp_path / "a.pdf", tmp_path / "a.bin"
    file.write_bytes(files.pdf(["Words."]))
    binary.write_bytes(b"\0\1\2")
    first, second = speed.run([file, binary], readers=["everlong"], progress=lambda line: None).rows
    figures = re.fullmatch(r"(\d+\.\d\d) s, (\d+) MB, 0\.00 MB", first["everlong"])
    assert figures
    assert float(figures[1]) > 0
    assert int(figures[2]) > 1
    assert second["everlong"] == "no text"


def test_text_in_utf_8_is_not_converted(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("Über", encoding="utf-8")
    assert peers.convert(file, "everlong").text == "Über"


@pytest.mark.parametrize("encoding", ["utf-8-sig", "iso2022_jp", "utf-16"])
def test_the_server_decides_about_texts_as_at_an_upload(encoding: str, tmp_path: Path) -> None:
    """ISO-2022-JP consists of bytes of UTF-8."""
    file = tmp_path / "a.txt"
    file.write_text("日本語の文章です。" * 20, encoding=encoding)
    assert (peers.convert(file, "everlong").text or "").strip() == "日本語の文章です。" * 20


def test_a_conversion_that_takes_too_long_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, wait = tmp_path / "pid", subprocess.Popen.wait

    def impatient(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if timeout is None:
            return wait(process)
        while not started.exists() or not started.read_text():
            time.sleep(0.01)
        raise subprocess.TimeoutExpired("conversion", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", impatient)
    found = peers._measured(["/bin/sh", "-c", f"echo $$ > {started}; exec sleep 600"], tmp_path / "text")
    assert found.text is None
    with contextlib.suppress(psutil.NoSuchProcess):
        conversion = psutil.Process(int(started.read_text()))
        while conversion.status() != psutil.STATUS_ZOMBIE:  # until the time limit of tests
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("name", "said"),
    [("nonsense", "nonsense: unknown reader"), ("docling", "is not installed")],
    ids=["unknown", "missing"],
)
def test_a_reader_that_cannot_be_compared(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "has", lambda reader, python: reader != "docling")
    result = CliRunner().invoke(bench, ["readers", str(FORMATS), "--readers", name])
    assert result.exit_code != 0
    assert said in " ".join(result.output.split())
