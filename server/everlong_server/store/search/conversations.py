"""`Conversations`: finds a tenant's sessions by their words, and those that branched off from the same one."""

from __future__ import annotations

import contextlib
import json
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from everlong_server.errors import NotFound
from everlong_server.store.messages import open_message
from everlong_server.store.records import Session
from everlong_server.store.redis import keys
from everlong_server.store.redis.connection import Client
from everlong_server.store.redis.index import page
from everlong_server.store.search.passages import SEARCHERS
from everlong_server.store.sessions import Sessions
from everlong_server.store.vault import Vault

_BATCH = 100
"""Sessions that are looked at together."""
_MESSAGES = 1000
"""Messages that are read at once, at least those of one session."""
_IDS = 1000
"""Sessions whose parents are read at once."""

Page: TypeAlias = tuple[list[Session], bool]
"""Sessions, newest first, and whether more follow."""


@dataclass(eq=False)
class Conversations:
    """One tenant's sessions as a person looks for them. Reads the messages of all of them: there is no index of their words."""

    redis: Client
    tenant: str
    sessions: Sessions
    vault: Vault

    def of(self, tenant: str) -> Conversations:
        """Return the sessions of another tenant."""
        return replace(self, tenant=tenant, sessions=self.sessions.of(tenant))

    async def with_words(self, query: str, limit: int, after: str | None) -> Page:
        """Return the sessions that have all words of `query`: in the title, the messages or the names of the documents.

        Case and accents do not count, and a word of the query may be a part of a longer one. `after`: the last id of the page before.
        """
        words, names = fold(query).split(), dict[str, str]()
        if not words:  # accents alone
            return [], False

        async def choose(ids: Sequence[str]) -> list[str]:
            async with self.redis.pipeline(transaction=False) as pipe:
                for id in ids:
                    pipe.hmget(keys.session(id), ["title", "documents", "messages"])
                heads = await pipe.execute()
            documents = [json.loads(head[1] or b"[]") for head in heads]
            await self._add_names({each for several in documents for each in several}, names)
            named = [" ".join(names[each] for each in several) for several in documents]
            found = list[str]()
            for part in _parts([int(head[2] or 0) for head in heads]):
                async with self.redis.pipeline(transaction=False) as pipe:
                    for id in ids[part]:
                        pipe.lrange(keys.session_messages(id), 0, -1)
                    messages = await pipe.execute()
                titles = [head[0] for head in heads[part]]
                sessions = list(zip(ids[part], titles, named[part], messages, strict=True))
                found += await SEARCHERS.run(self._having, words, sessions)
            return found

        return await self._page(choose, limit, after)

    async def branches_of(self, session_id: str, limit: int, after: str | None) -> Page:
        """Return the session and all that branched off from the same one, also by way of others. Raises `NotFound`."""
        await self.sessions.get(session_id)
        ids = [id.decode() for id in await self.redis.zrange(keys.sessions(self.tenant), 0, -1)]
        parents = dict[str, str]()
        for first in range(0, len(ids), _IDS):
            async with self.redis.pipeline(transaction=False) as pipe:
                for id in ids[first : first + _IDS]:
                    pipe.hget(keys.session(id), "parent")
                found = zip(ids[first : first + _IDS], await pipe.execute(), strict=True)
            parents |= {id: parent.decode() for id, parent in found if parent}
        origins = _origins(parents)
        origin = origins.get(session_id, session_id)

        async def choose(ids: Sequence[str]) -> list[str]:
            return [id for id in ids if origins.get(id, id) == origin]

        return await self._page(choose, limit, after)

    async def _page(
        self, choose: Callable[[Sequence[str]], Awaitable[list[str]]], limit: int, after: str | None
    ) -> Page:
        """Return a page of those sessions that `choose` returns, out of ids in the order of the list."""
        found, more = list[str](), True
        while more and len(found) <= limit:
            ids, more = await page(self.redis, keys.sessions(self.tenant), _BATCH, after)
            after = ids[-1] if ids else after
            found += await choose(ids)
        sessions = []
        for id in found[:limit]:
            with contextlib.suppress(NotFound):  # deleted meanwhile
                sessions.append(await self.sessions.get(id))
        return sessions, len(found) > limit

    async def _add_names(self, documents: set[str], names: dict[str, str]) -> None:
        """Add the file names of documents that `names` lacks."""
        new = sorted(documents - names.keys())
        async with self.redis.pipeline(transaction=False) as pipe:
            for id in new:
                pipe.hget(keys.document(id), "filename")
            for id, name in zip(new, await pipe.execute(), strict=True):
                names[id] = self.vault.unseal(name, "filename").decode() if name else ""

    def _having(
        self, words: Sequence[str], sessions: Sequence[tuple[str, bytes | None, str, list[bytes]]]
    ) -> list[str]:
        """Return the ids of those sessions (id, title, names, messages) that have all words. Blocks."""
        found = []
        for id, title, names, messages in sessions:
            texts = [names, self.vault.unseal(title, "title").decode() if title else ""]
            missing = _missing(words, texts)
            if missing and messages:
                opened: list[dict[str, Any]] = [open_message(item, self.vault) for item in messages]
                missing = _missing(missing, [str(message["content"]) for message in opened])
            if not missing:
                found.append(id)
        return found


def _parts(counts: Sequence[int]) -> Iterator[slice]:
    """Yield parts of a list of sessions with these numbers of messages, so that each part has few."""
    start, total = 0, 0
    for n, count in enumerate(counts):
        if n > start and total + count > _MESSAGES:
            yield slice(start, n)
            start, total = n, 0
        total += count
    yield slice(start, len(counts))


def fold(text: str) -> str:
    """Return the text without accents and case."""
    if text.isascii():
        return text.lower()
    return "".join(
        letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter)
    ).casefold()


def _missing(words: Sequence[str], texts: Sequence[str]) -> list[str]:
    folded = fold("\n".join(texts))
    return [word for word in words if word not in folded]


def _origins(parents: dict[str, str]) -> dict[str, str]:
    """Return the session that each of `parents` comes from in the end. One that was deleted is an origin."""
    origins: dict[str, str] = {}
    for start in parents:
        at, path = start, set[str]()
        while at in parents and at not in origins and at not in path:
            path.add(at)
            at = parents[at]
        origins |= dict.fromkeys(path, origins.get(at, at))
    return origins
