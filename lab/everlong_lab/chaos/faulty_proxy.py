"""`FaultyProxy`: the way from one replica to Redis, which can be cut, held and slowed down."""

from __future__ import annotations

import asyncio
import contextlib

_PIECE = 1 << 16


class FaultyProxy:
    """A TCP proxy before a port of this machine."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._there = True
        self.delay = 0.0
        """Seconds that every piece of data is late."""
        self.port = 0

    async def start(self) -> None:
        """Listens."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listens no more."""
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def cut(self) -> None:
        """Every connection breaks, and every new one."""
        self._there = False
        for end in list(self._ends):
            end.transport.abort()

    def hold(self) -> None:
        """Connections stand, new ones too, and nothing comes through: half open."""
        self._moving.clear()

    def mend(self) -> None:
        """All is as it should be."""
        self._there, self.delay = True, 0.0
        self._moving.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._ends.add(writer)
        try:
            if not self._there:
                return
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(back)
            self._ends.add(back)
            pumps = [asyncio.create_task(self._pump(*pair)) for pair in ((reader, back), (there, writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # Redis is away
            pass
        finally:
            for end in ends:
                self._ends.discard(end)
                end.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                await self._moving.wait()
                if self.delay:
                    await asyncio.sleep(self.delay)
                writer.write(data)
                await writer.drain()
