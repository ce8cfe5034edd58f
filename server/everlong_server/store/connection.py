"""The one place that makes connections to Redis."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

# redis.asyncio.Redis. Its annotations are unions over sync, async, bytes and str that no caller can narrow.
Client = Any


def connect(url: str) -> Client:
    """A client of the Redis at `url`; connections are made when they are needed.

    A command is retried for about a second when the connection breaks. Every script of ours checks a version or a
    token, so that one that was carried out although its answer got lost is refused the second time, not repeated.
    """
    return Redis.from_url(
        url,
        decode_responses=False,  # states are bytes
        socket_connect_timeout=2.0,
        socket_timeout=10.0,
        health_check_interval=15,
        retry=Retry(ExponentialBackoff(cap=0.4, base=0.05), retries=4),
        retry_on_error=[RedisConnectionError, RedisTimeoutError],
    )
