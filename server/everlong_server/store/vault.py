"""`Vault`: encrypts what users write and upload before it reaches Redis or the blob store. The keys come from a file.

Sealed data is `MAGIC | key id | salt | chunks`. Each sealed value has an AES-256-GCM key of its own, derived by HKDF from the
named key, a random salt and the value's purpose. Nonces therefore only need to count the value's chunks of 64 KiB, and a part of
a large text can be decrypted by itself. The nonce of the last chunk differs, so a truncated value is refused like a changed one.
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

FIELDS = frozenset(
    {
        "state",
        "open",
        "filename",
        "title",
        "response",
        "message",
        "tool_calls",
        "error",
        "answer",
        "notes",
        "label",
        "attributes",
        "searched",
        "batch",
        "errors",
    }
)
"""The hash fields that are sealed, in keys that have sealed fields (`keys.sealed`): all that users wrote or that derives from it."""
MESSAGES = "messages"
"""The purpose that a session's messages are sealed for."""

_MAGIC = b"\xffEVLSEAL"  # not valid UTF-8, so no text begins with it
_HEADER = struct.Struct("<8s16s16s")
_CHUNK = 1 << 16
_TAG = 16
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,15}")
_MARK = b"everlong"


class VaultError(Exception):
    """The keys cannot be used, or are not the keys that the store is encrypted with."""


def new_key() -> str:
    """Return a new line for the key file: an id that begins with today's date, and 256 random bits as hex."""
    return f"{time.strftime('%Y%m%d', time.gmtime())}-{secrets.token_hex(3)} {secrets.token_hex(32)}"


class Vault:
    """Encryption keys by their ids. The first one encrypts, each of them decrypts. Without keys, data is stored unencrypted."""

    def __init__(self, keys: Mapping[str, bytes] | None = None) -> None:
        self._keys = dict(keys or {})
        self.first = next(iter(self._keys), None)

    @staticmethod
    def load(path: Path | None) -> Vault:
        """Load the keys of a file: one per line, `ID HEX` with 64 digits; the first one encrypts. Raises `VaultError`."""
        if path is None:
            return Vault()
        setting, keys = f"--encryption-key-file (EVERLONG_ENCRYPTION_KEY_FILE)={str(path)!r}", dict[str, bytes]()
        try:
            lines = path.expanduser().read_text("ascii").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise VaultError(f"{setting}: {getattr(error, 'strerror', None) or 'the file is not ASCII'}") from None
        for number, line in enumerate(lines, 1):
            if not line.strip() or line.startswith("#"):
                continue
            # Errors never quote the line: it may hold a key.
            id, _, key = line.strip().partition(" ")
            if not _ID.fullmatch(id) or not re.fullmatch("[0-9a-fA-F]{64}", key.strip()):
                raise VaultError(
                    f"{setting}, line {number}: a line must be an id (at most 16 of a-z 0-9 -), a space and 64 hexadecimal "
                    "digits; `everlong encryption key` makes one"
                )
            if id in keys:
                raise VaultError(f"{setting}, line {number}: the id {id!r} occurs twice")
            keys[id] = bytes.fromhex(key.strip())
        if not keys:
            raise VaultError(f"{setting}: there is no key in the file; `everlong encryption key` makes one")
        return Vault(keys)

    def __bool__(self) -> bool:
        """Whether there are keys."""
        return self.first is not None

    # Values

    def seal(self, data: bytes | str, purpose: str) -> bytes | str:
        """Encrypt `data` for a purpose; only data sealed for the same purpose can be unsealed. Without keys, return it as it is."""
        sealer = self.sealer(purpose)
        return sealer.update(data.encode() if isinstance(data, str) else data) + sealer.final() if self else data

    def unseal(self, data: bytes, purpose: str) -> bytes:
        """Decrypt what `seal` returned. Raises `Damaged` and `KeyMissing`."""
        if not self and not data.startswith(_MAGIC):
            return data
        with self.reader(io.BytesIO(data), purpose) as file:
            return file.read()

    def sealed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Encrypt the sealed fields of a hash."""
        return {
            name: self.seal(value, name) if name in FIELDS and isinstance(value, bytes | str) else value
            for name, value in fields.items()
        }

    def opened(self, stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """Decrypt the sealed fields of a hash; the inverse of `sealed`. Raises `Damaged` and `KeyMissing`."""
        return {
            name: self.unseal(value, name.decode()) if name.decode() in FIELDS else value
            for name, value in stored.items()
        }

    def seals_with(self, data: bytes) -> str | None:
        """Return the id of the key that `data` is sealed with; None if it is not sealed."""
        if not data.startswith(_MAGIC):
            return None
        return data[len(_MAGIC) : len(_MAGIC) + 16].rstrip(b"\0").decode("ascii", "replace")

    # Files

    def sealer(self, purpose: str) -> Sealer:
        """Return a sealer for one value that is written in pieces."""
        if self.first is None:
            return Sealer(b"", None)
        header = _HEADER.pack(_MAGIC, self.first.encode(), salt := secrets.token_bytes(16))
        return Sealer(header, _cipher(self._keys[self.first], salt, purpose))

    def reader(self, file: IO[bytes], purpose: str) -> IO[bytes]:
        """Return a file that decrypts `file`, which must be at its beginning. Raises `Damaged` and `KeyMissing`."""
        header = file.read(_HEADER.size)
        id = self.seals_with(header)
        if id is None and not self:
            file.seek(0)
            return file
        if id is None or len(header) < _HEADER.size:
            raise Damaged(f"the stored data of {purpose!r} is not encrypted, or damaged")
        if id not in self._keys:
            raise KeyMissing(
                f"the stored data of {purpose!r} is encrypted with the key {id!r}, which this server does not have: add it to "
                "the file of EVERLONG_ENCRYPTION_KEY_FILE"
            )
        return io.BufferedReader(_SealedReader(file, _cipher(self._keys[id], header[-16:], purpose), purpose), _CHUNK)

    # Whether the keys fit the store

    def mark(self) -> bytes | str:
        """Return a mark to store, by which `require` can tell later whether its keys fit the store."""
        return self.seal(_MARK, "mark")

    def require(self, mark: bytes | None, *, empty: bool) -> None:
        """Raise `VaultError` if the store cannot be read with these keys.

        `mark`: the stored mark; None if there is none. `empty`: nothing else is stored.
        """
        if mark is None:
            if self and not empty:
                raise VaultError(
                    "EVERLONG_ENCRYPTION_KEY_FILE is set, but the store is not encrypted: stop all servers and run "
                    "`everlong encryption rotate`, which encrypts it"
                )
            return
        id = self.seals_with(mark)
        if id is None:
            raise VaultError(
                "only part of the store is encrypted, because `everlong encryption rotate` was interrupted: run it again; it "
                "resumes where it stopped"
            )
        if not self:
            raise VaultError(f"the store is encrypted with the key {id!r}: set EVERLONG_ENCRYPTION_KEY_FILE")
        if id not in self._keys:
            raise VaultError(
                f"the store is encrypted with the key {id!r}; EVERLONG_ENCRYPTION_KEY_FILE has only {', '.join(self._keys)}"
            )
        try:
            self.unseal(mark, "mark")
        except Damaged:
            raise VaultError(
                f"the key {id!r} in EVERLONG_ENCRYPTION_KEY_FILE does not match the store, which is encrypted with a different key of "
                f"the same id: restore the original key file"
            ) from None


def _cipher(key: bytes, salt: bytes, purpose: str) -> AESGCM:
    return AESGCM(HKDF(SHA256(), 32, salt, b"everlong " + purpose.encode()).derive(key))


def _nonce(chunk: int, last: bool) -> bytes:
    return chunk.to_bytes(11, "big") + bytes([last])


class Sealer:
    """Encrypts one value in pieces. Without a cipher, passes the pieces through."""

    def __init__(self, header: bytes, cipher: AESGCM | None) -> None:
        self._header = header
        self._cipher = cipher
        self._rest = b""
        self._chunk = 0

    def update(self, data: bytes) -> bytes:
        """Return the sealed bytes that are complete so far."""
        if self._cipher is None:
            return data
        out, data = [self._header], self._rest + data
        end = max(0, (len(data) - 1) // _CHUNK * _CHUNK)  # keeps at least one byte for the last chunk
        for at in range(0, end, _CHUNK):
            out.append(self._cipher.encrypt(_nonce(self._chunk, False), data[at : at + _CHUNK], None))
            self._chunk += 1
        self._header, self._rest = b"", data[end:]
        return b"".join(out)

    def final(self) -> bytes:
        """Return the rest of the sealed bytes."""
        if self._cipher is None:
            return b""
        return self._header + self._cipher.encrypt(_nonce(self._chunk, True), self._rest, None)


class _SealedReader(io.RawIOBase):
    """Decrypts a sealed file chunk by chunk."""

    def __init__(self, file: IO[bytes], cipher: AESGCM, purpose: str) -> None:
        self._file = file
        self._cipher = cipher
        self._purpose = purpose
        body = file.seek(0, os.SEEK_END) - _HEADER.size
        self._chunks = max(1, -(-body // (_CHUNK + _TAG)))
        self._size = max(0, body - self._chunks * _TAG)
        self._at = 0
        self._current: tuple[int, bytes] = (-1, b"")
        """The chunk that was decrypted last: its number and its bytes."""
        self._decrypt(self._chunks - 1)  # refuses a truncated file before any of its content is used

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
        data = self._decrypt(chunk)[skip : skip + len(buffer)]
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _decrypt(self, chunk: int) -> bytes:
        if self._current[0] != chunk:
            self._file.seek(_HEADER.size + chunk * (_CHUNK + _TAG))
            sealed = self._file.read(_CHUNK + _TAG)
            try:
                self._current = chunk, self._cipher.decrypt(_nonce(chunk, chunk == self._chunks - 1), sealed, None)
            except (InvalidTag, ValueError):  # too short to have a tag
                raise Damaged(f"the stored data of {self._purpose!r} was changed or truncated") from None
        return self._current[1]

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
