"""`FaultyProxy`: the connection from one replica to Redis, which can be cut, held and delayed."""

from __future__ import annotations

import asyncio
import contextlib

_PIECE = 1 << 16


class FaultyProxy:
    """A TCP proxy to a local port."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.StreamWriter] = set()
        self._moving = asyncio.Event()
        self._moving.set()
        self._accepting = True
        self.delay = 0.0
        """Seconds by which every piece of data is delayed."""
        self.port = 0

    async def start(self) -> None:
        """Start listening."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Break all connections and stop listening."""
        self.cut()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    def cut(self) -> None:
        """Break every connection, and every new one."""
        self._accepting = False
        for end in list(self._ends):
            end.transport.abort()

    def hold(self) -> None:
        """Keep connections open, accept new ones, and pass no data: half open."""
        self._moving.clear()

    def mend(self) -> None:
        """Work normally again."""
        self._accepting, self.delay = True, 0.0
        self._moving.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        self._ends.add(writer)
        try:
            if not self._accepting:
                return
            target_reader, target_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(target_writer)
            self._ends.add(target_writer)
            pairs = (reader, target_writer), (target_reader, writer)
            pumps = [asyncio.create_task(self._pump(*pair)) for pair in pairs]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)
        except OSError:  # Redis is not running
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
