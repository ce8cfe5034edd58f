"""`LossyRedisProxy`: a proxy in front of Redis that drops replies: Redis has run the script, but the client gets no reply."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import threading
from collections import Counter
from typing import Self


class LossyRedisProxy:
    """A TCP proxy for a local port, in a thread.

    It breaks the connection instead of passing on the first reply to each script with each set of arguments. redis-py then
    retries the script. `lost`: how many replies were dropped.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self._known: set[bytes] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.lost: Counter[str] = Counter()
        """By the script's SHA-1."""
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]

    async def _serve(self, caller: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        redis, commands = await asyncio.open_connection("127.0.0.1", self.target)
        losing: list[tuple[str, bytes]] = []
        back = asyncio.create_task(self._back(redis, answers, losing))
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                command, script = await _command(caller)
                if script is not None and (form := hashlib.sha256(command).digest()) not in self._known:
                    self._known.add(form)
                    losing.append((script, form))
                commands.write(command)
                await commands.drain()
        commands.close()
        await back

    async def _back(
        self, redis: asyncio.StreamReader, answers: asyncio.StreamWriter, losing: list[tuple[str, bytes]]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await redis.read(1 << 16):
                if losing:
                    script, form = losing.pop()
                    if not data.startswith(b"-NOSCRIPT"):
                        self.lost[script] += 1
                        break
                    self._known.discard(form)  # it was not run
                answers.write(data)
                await answers.drain()
        answers.transport.abort()


async def _command(caller: asyncio.StreamReader) -> tuple[bytes, str | None]:
    """Read a command. Return its bytes, and the SHA-1 of the script if it is an EVALSHA."""
    line = await caller.readuntil(b"\r\n")
    whole, parts = [line], []
    for _ in range(int(line[1:])):
        size = await caller.readuntil(b"\r\n")
        part = await caller.readexactly(int(size[1:]) + 2)
        whole += (size, part)
        parts.append(part)
    return b"".join(whole), parts[1].decode().strip() if parts[0].upper() == b"EVALSHA\r\n" else None
