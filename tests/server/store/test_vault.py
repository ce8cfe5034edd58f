"""The vault: what it seals, the file of its keys, and the blobs that it seals."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everlong_server.errors import Damaged, KeyMissing
from everlong_server.store.texts.blobs import Blobs
from everlong_server.store.texts.local_copies import LocalCopies
from everlong_server.store.vault import Vault, VaultError, new_key
from tests.server.store.encrypted import MARKER, TEXT, vault

CHUNK = 1 << 16


# What is sealed


@pytest.mark.parametrize("size", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 7])
def test_what_is_sealed_is_opened_whole_and_in_parts(size: int) -> None:
    data, own = os.urandom(size), vault()
    sealer = own.sealer("doc")
    pieces = [sealer.update(data[at : at + 10_007]) for at in range(0, size, 10_007)]
    sealed = b"".join(pieces) + sealer.final()
    assert data not in sealed or size < 8
    assert own.unseal(sealed, "doc") == data
    for offset in {0, size // 2, CHUNK - 1, CHUNK, size}:
        with own.reader(io.BytesIO(sealed), "doc") as file:
            file.seek(offset)
            assert file.read(100) == data[offset : offset + 100]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(st.binary(max_size=200), st.data())
def test_what_was_changed_or_cut_off_is_refused(data: bytes, draw: st.DataObject) -> None:
    own = vault()
    sealed = own.seal(data, "state")
    assert isinstance(sealed, bytes)
    at = draw.draw(st.integers(0, len(sealed) - 1))
    changed = bytearray(sealed)
    changed[at] ^= draw.draw(st.integers(1, 255))
    for bad in (bytes(changed), sealed[:at], sealed + b"\0"):
        with pytest.raises((Damaged, KeyMissing)):
            own.unseal(bad, "state")


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_text_that_lost_whole_chunks_is_refused(chunks: int) -> None:
    sealed = vault().seal(os.urandom(3 * CHUNK), "doc")
    with pytest.raises(Damaged):
        vault().unseal(sealed[: -chunks * (CHUNK + 16)], "doc")  # type: ignore[arg-type]


def test_one_thing_is_not_taken_for_another() -> None:
    sealed = vault().seal(b"words", "state")
    with pytest.raises(Damaged):
        vault().unseal(sealed, "open")  # type: ignore[arg-type]


def test_the_same_words_never_look_the_same() -> None:
    assert len({vault().seal(b"words", "state") for _ in range(100)}) == 100


def test_an_error_names_the_key_that_is_missing() -> None:
    sealed = vault("one").seal(b"words", "state")
    assert isinstance(sealed, bytes)
    for other in (Vault(), vault("two")):
        with pytest.raises(KeyMissing, match="'one'"):
            other.unseal(sealed, "state")
    assert vault("two", "one").unseal(sealed, "state") == b"words"
    with pytest.raises(Damaged):
        Vault({"one": b"x" * 32}).unseal(sealed, "state")
    with pytest.raises(Damaged, match="not encrypted"):
        vault().unseal(b"words", "state")  # otherwise anybody with write access could replace encrypted data


# The file of keys


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "no key in the file"),
        ("# only a remark\n", "no key in the file"),
        (f"one {'ab' * 31}", "line 1"),
        (f"one {'xy' * 32}", "line 1"),
        (f"# a remark\nOne {'ab' * 32}", "line 2"),
        ("ab" * 32, "line 1"),
        (f"one {'ab' * 32}\none {'cd' * 32}", "twice"),
        ("é", "not ASCII"),
        (None, "No such file"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_says_why(tmp_path: Path, content: str | None, words: str) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_text(content)
    with pytest.raises(VaultError, match=words) as caught:
        Vault.load(file)
    assert "EVERLONG_ENCRYPTION_KEY_FILE" in str(caught.value)
    assert "abab" not in str(caught.value)


def test_the_first_key_of_the_file_seals_and_all_of_them_open(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    old, new = new_key(), new_key()
    file.write_text(f"{old}\n")
    sealed = Vault.load(file).seal(b"words", "state")
    assert isinstance(sealed, bytes)
    file.write_text(f"# the new one\n{new}\n\n{old}\n")
    both = Vault.load(file)
    assert both.first == new.split()[0]
    assert both.unseal(sealed, "state") == b"words"


# Blobs


@pytest.fixture(params=["file", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"file://{tmp_path}/blobs" if request.param == "file" else f"memory://encryption-{tmp_path.name}"


async def test_copies_of_what_another_server_has_deleted_go(url: str, tmp_path: Path) -> None:
    one, other = (Blobs(url, vault(), tmp_path / name) for name in ("one", "other"))
    names = [f"doc_{letter * 32}.passages" for letter in "ab"]
    for name in names:
        with one.fill(name) as path:
            path.write_text("swordfish")
        with other.local(name) as path:
            assert path.read_text() == "swordfish"

    async def known(_: set[str]) -> set[str]:
        return {"doc_" + "b" * 32}

    await one.delete(names[0])
    await other.sweep(known, untouched=3600)
    copies = [path.name for path in (tmp_path / "other").rglob("*.passages")]
    assert copies == [names[1]]
    with pytest.raises(FileNotFoundError), other.local(names[0]):
        pass


async def test_blobs_are_sealed_wherever_they_are(url: str, tmp_path: Path) -> None:
    blobs, name = Blobs(url, vault(), tmp_path / "private"), f"doc_{'a' * 32}"
    data = TEXT.encode() * 40
    assert len(data) > 3 * CHUNK
    writer = await blobs.create(name)
    for at in range(0, len(data), 100_003):
        await writer.write(data[at : at + 100_003])
    await writer.commit()
    with blobs.fill(f"{name}.marks") as path:
        path.write_bytes(TEXT.encode())
    plain = Blobs(url)
    for stored in (name, f"{name}.marks"):
        with plain._fs.open(plain._path(stored), "rb") as file:
            assert MARKER.encode() not in file.read()
        with pytest.raises(KeyMissing):
            plain.open(stored)
    with blobs.open(name, 150_000) as file:
        assert file.read(1000) == data[150_000:151_000]
    for _ in range(2):
        with blobs.local(f"{name}.marks") as path:
            assert path.read_text() == TEXT
            assert path.parent.parent == tmp_path / "private"
            assert path.parent.stat().st_mode & 0o077 == 0
    await blobs.delete(f"{name}.marks")
    assert not path.exists()
    assert not blobs.reseal(name)
    rotated = Blobs(url, vault("two", "one"), tmp_path / "private")
    assert rotated.reseal(name)
    with Blobs(url, vault("two"), tmp_path / "private").open(name) as file:
        assert file.read() == data
    assert sorted(rotated.names()) == [name]


def test_copies_make_room_for_others_unless_they_are_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("everlong_server.store.texts.local_copies._MOST_BYTES", 250)
    copies = LocalCopies(tmp_path, secret=True)

    def content() -> io.BytesIO:
        return io.BytesIO(b"x" * 100)

    def there() -> set[str]:
        return {path.name for path in Path(copies._folder.name).iterdir()} - {"alive"}

    with copies.of("a", content) as used:
        for name in "bcde":
            with copies.of(name, content):
                pass
        assert used.exists()
        assert there() == {"a", "e"}
    with copies.of("e", content), copies.of("f", content):
        pass
    assert there() == {"e", "f"}
    assert not copies._readers


def test_copies_of_who_was_killed_are_swept_and_those_of_the_living_are_not(tmp_path: Path) -> None:
    left = subprocess.run(
        [sys.executable, "-c", f"""
import os, signal, io
from pathlib import Path
from everlong_server.store.texts.local_copies import LocalCopies
copies = LocalCopies(Path({str(tmp_path)!r}), secret=True)
with copies.of("a", lambda: io.BytesIO(b"words")):
    os.kill(os.getpid(), signal.SIGKILL)
"""], check=False,
    )  # fmt: skip
    assert left.returncode == -9
    assert len(list(tmp_path.glob("*/a"))) == 1
    living = LocalCopies(tmp_path, secret=True)
    with living.of("b", lambda: io.BytesIO(b"words")) as copy:
        assert not list(tmp_path.glob("*/a"))
        LocalCopies(tmp_path, secret=True)
        assert copy.exists()
