"""`Clock`: the time of day of a process, which can be set while it runs, with libfaketime."""

from __future__ import annotations

from pathlib import Path

_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_SEEN_SECONDS = 1
"""Longest time until a process notices a jump."""


def _library() -> Path | None:
    return next((found for pattern in _LIBRARIES for found in sorted(Path("/").glob(pattern.lstrip("/")))), None)


class Clock:
    """Sets the time of day of processes whose command starts with `prefix`. Without libfaketime it has no effect.

    Their monotonic clock is unaffected, as when an administrator, NTP or a resumed virtual machine sets the time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """Set the clock `seconds` ahead of the true time, or behind if negative."""
        self._file.write_text(f"{seconds:+.3f}", encoding="ascii")

    @property
    def prefix(self) -> list[str]:
        """Start of a command that preloads libfaketime. Forked processes inherit it and may choose another clock by `own`."""
        library = _library()
        if library is None:
            return []
        variables = {
            "LD_PRELOAD": str(library),
            "FAKETIME_CACHE_DURATION": str(_SEEN_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # A workaround for an old libc that makes every wait for Python's lock a hundred times as long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            **self.own,
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    @property
    def own(self) -> dict[str, str]:
        """Environment variables that make a process use this clock."""
        return {"FAKETIME_TIMESTAMP_FILE": str(self._file)}


def settable() -> bool:
    """Return whether clocks can be set on this machine."""
    return _library() is not None
