"""`naming_field`: turns a `GrammarError` into an `InvalidRequest` that names the field with the schema."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from everlong_models import GrammarError
from everlong_server.errors import InvalidRequest


@contextmanager
def naming_field(name: str) -> Iterator[None]:
    """Raise a `GrammarError` of the block as `InvalidRequest` about the field `name`, which has the schema.

    Some schemas prove too complex only while an answer is generated.
    """
    try:
        yield
    except GrammarError as error:
        raise InvalidRequest(f"{name}: {error}", param=name) from error
