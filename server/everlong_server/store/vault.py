"""`Vault`: encrypts what users have said and uploaded before it reaches Redis or the blob store. Keys come from a file.

What is sealed is `MAGIC | key id | salt | chunks`. Each sealed thing has an AES-256-GCM key of its own, derived (HKDF) from
the named key, a random salt and what the thing is; so nonces need only count its chunks of 64 KiB, and a part of a large
text can be read by itself. The last chunk is marked: what was cut off, anywhere, is refused as what was changed is.
"""

from __future__ import annotations

import io
import os
import re
import secrets
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from everlong_server.errors import Damaged, KeyMissing

FIELDS = frozenset({"state", "open", "filename", "title", "response", "message", "error", "answer"})
"""Fields of hashes that are sealed, in keys that have any (`keys.sealed`): what holds, or came of, somebody's words."""
MESSAGES = "messages"
"""What a session's messages are sealed as."""

_MAGIC = b"\xffEVLSEAL"  # no UTF-8, so that no text begins like this
_HEADER = struct.Struct("<8s16s16s")
_CHUNK = 1 << 16
_TAG = 16
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
_MARK = b"everlong"


class VaultError(Exception):
    """Keys that cannot be used, or that are not those of what is stored."""


def new_key() -> str:
    """A line for the key file: an id of the day, and 256 random bits."""
    return f"{time.strftime('%Y%m%d', time.gmtime())}-{secrets.token_hex(3)} {secrets.token_hex(32)}"


class Vault:
    """The keys by their ids; the first one seals, each of them opens. Without keys all is stored as it is."""

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._keys = dict(keys or {})
        self.first = next(iter(self._keys), None)

    @staticmethod
    def load(path: Path | None) -> Vault:
        """With the keys of the file: a line each, `ID HEX`, 64 digits; the first one seals. Raises `VaultError`."""
        if path is None:
            return Vault()
        said, keys = f"--encryption-key-file (EVERLONG_ENCRYPTION_KEY_FILE)={str(path)!r}", dict[str, bytes]()
        try:
            lines = path.expanduser().read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise VaultError(f"{said}: {getattr(error, 'strerror', None) or 'it is not ASCII'}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            # No word of the line is repeated: it may be a key.
            id, _, key = line.strip().partition(" ")
            if not _ID.fullmatch(id) or not re.fullmatch("[0-9a-fA-F]{64}", key.strip()):
                raise VaultError(
                    f"{said}, line {number}: a line is an id (at most 16 of a-z 0-9 -), a space and 64 hexadecimal digits; "
                    "`everlong encryption key` makes one"
                )
            if id in keys:
                raise VaultError(f"{said}, line {number}: the id {id!r} is there twice")
            keys[id] = bytes.fromhex(key.strip())
        if not keys:
            raise VaultError(f"{said}: there is no key in it; `everlong encryption key` makes one")
        return Vault(keys)

    def __bool__(self) -> bool:
        """Whether anything is sealed."""
        return self.first is not None

    # Values

    def seal(self, data: bytes | str, what: str) -> bytes | str:
        """`data`, sealed as `what` it is."""
        sealer = self.sealer(what)
        return sealer.update(data.encode() if isinstance(data, str) else data) + sealer.final() if self else data

    def unseal(self, data: bytes, what: str) -> bytes:
        """What was sealed. Raises `Damaged` and `KeyMissing`."""
        if not self and not data.startswith(_MAGIC):
            return data
        with self.reader(io.BytesIO(data), what) as file:
            return file.read()

    def sealed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A hash as it is stored."""
        return {
            name: self.seal(value, name) if name in FIELDS and isinstance(value, bytes | str) else value
            for name, value in fields.items()
        }

    def opened(self, stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """The inverse of `sealed`. Raises `Damaged` and `KeyMissing`."""
        return {
            name: self.unseal(value, name.decode()) if name.decode() in FIELDS else value
            for name, value in stored.items()
        }

    def seals_with(self, data: bytes) -> str | None:
        """The id of the key that `data` is sealed with; None if it is not."""
        if not data.startswith(_MAGIC):
            return None
        return data[len(_MAGIC) : len(_MAGIC) + 16].rstrip(b"\0").decode("ascii", "replace")

    # Files

    def sealer(self, what: str) -> Sealer:
        """For one thing that comes in pieces."""
        if self.first is None:
            return Sealer(b"", None)
        header = _HEADER.pack(_MAGIC, self.first.encode(), salt := secrets.token_bytes(16))
        return Sealer(header, _cipher(self._keys[self.first], salt, what))

    def reader(self, file: IO[bytes], what: str) -> IO[bytes]:
        """`file`, which stands at its beginning, as it was before it was sealed. Raises `Damaged` and `KeyMissing`."""
        header = file.read(_HEADER.size)
        id = self.seals_with(header)
        if id is None and not self:
            file.seek(0)
            return file
        if id is None or len(header) < _HEADER.size:
            raise Damaged(f"what is stored as {what!r} is not encrypted, or damaged")
        if id not in self._keys:
            raise KeyMissing(
                f"what is stored as {what!r} is encrypted with the key {id!r}, which this server has not "
                "(EVERLONG_ENCRYPTION_KEY_FILE)"
            )
        return io.BufferedReader(_SealedReader(file, _cipher(self._keys[id], header[-16:], what), what), _CHUNK)

    # The keys are those of what is stored

    def mark(self) -> bytes | str:
        """Something to be kept, by which `require` sees whether keys are right."""
        return self.seal(_MARK, "mark")

    def require(self, mark: bytes | None, *, empty: bool) -> None:
        """Raises `VaultError` if what is stored cannot be read with these keys. `mark`: what was kept, if anything was;
        `empty`: nothing else is stored."""
        if mark is None:
            if self and not empty:
                raise VaultError(
                    "EVERLONG_ENCRYPTION_KEY_FILE is set, and what is stored is not encrypted: stop all servers, and "
                    "`everlong encryption rotate` encrypts it"
                )
            return
        id = self.seals_with(mark)
        if id is None:
            raise VaultError(
                "a part of what is stored is encrypted, and a part is not: `everlong encryption rotate` was begun and not "
                "finished; it goes on where it broke off"
            )
        if not self:
            raise VaultError(f"what is stored is encrypted with the key {id!r}: set EVERLONG_ENCRYPTION_KEY_FILE")
        if id not in self._keys:
            raise VaultError(
                f"what is stored is encrypted with the key {id!r}; EVERLONG_ENCRYPTION_KEY_FILE has {', '.join(self._keys)}"
            )
        try:
            self.unseal(mark, "mark")
        except Damaged:
            raise VaultError(
                f"the key {id!r} in EVERLONG_ENCRYPTION_KEY_FILE is not the one of that name that what is stored is "
                "encrypted with"
            ) from None


def _cipher(key: bytes, salt: bytes, what: str) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt, b"everlong " + what.encode()).derive(key))


def _nonce(chunk: int, last: bool) -> bytes:
    return chunk.to_bytes(11, "big") + bytes([last])


class Sealer:
    """Encrypts what comes in pieces; without a cipher it is passed through."""

    def __init__(self, header: bytes, cipher: AESGCM | None) -> None:
        self._ready = header
        self._cipher = cipher
        self._rest = b""
        self._chunk = 0

    def update(self, data: bytes) -> bytes:
        """What can be written now."""
        if self._cipher is None:
            return data
        out, data = [self._ready], self._rest + data
        end = max(0, (len(data) - 1) // _CHUNK * _CHUNK)  # there is always something left to be the last
        for at in range(0, end, _CHUNK):
            out.append(self._cipher.encrypt(_nonce(self._chunk, False), data[at : at + _CHUNK], None))
            self._chunk += 1
        self._ready, self._rest = b"", data[end:]
        return b"".join(out)

    def final(self) -> bytes:
        """The end."""
        if self._cipher is None:
            return b""
        return self._ready + self._cipher.encrypt(_nonce(self._chunk, True), self._rest, None)


class _SealedReader(io.RawIOBase):
    """A sealed file for reading, chunk by chunk."""

    def __init__(self, file: IO[bytes], cipher: AESGCM, what: str) -> None:
        self._file = file
        self._cipher = cipher
        self._what = what
        body = file.seek(0, os.SEEK_END) - _HEADER.size
        self._chunks = max(1, -(-body // (_CHUNK + _TAG)))
        self._size = max(0, body - self._chunks * _TAG)
        self._at = 0
        self._held: tuple[int, bytes] = (-1, b"")
        self._open(self._chunks - 1)  # a file that was cut off is refused before any of it is believed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        if self._at >= self._size:
            return 0
        chunk, skip = divmod(self._at, _CHUNK)
        data = self._open(chunk)[skip : skip + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _open(self, chunk: int) -> bytes:
        if self._held[0] != chunk:
            self._file.seek(_HEADER.size + chunk * (_CHUNK + _TAG))
            sealed = self._file.read(_CHUNK + _TAG)
            try:
                self._held = chunk, self._cipher.decrypt(_nonce(chunk, chunk == self._chunks - 1), sealed, None)
            except (InvalidTag, ValueError):  # too short to have a tag
                raise Damaged(f"what is stored as {self._what!r} was changed or cut off") from None
        return self._held[1]

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
