"""Tiny models: one thread, as in tests/models."""

from tests.models.conftest import _one_thread  # noqa: F401
