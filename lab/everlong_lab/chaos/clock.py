"""`Clock`: what a process takes for the time of day, which can be set while it runs (by libfaketime)."""

from __future__ import annotations

from pathlib import Path

_LIBRARIES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib/faketime/libfaketimeMT.so.1")
_SEEN_SECONDS = 1
"""How long a process may take to see a jump."""


def _library() -> Path | None:
    return next((found for pattern in _LIBRARIES for found in sorted(Path("/").glob(pattern.lstrip("/")))), None)


class Clock:
    """Of a process whose command begins with `prefix`. Without libfaketime on this machine it stays as it is.

    Its monotonic clock goes on as ever, as when an administrator, NTP or a resumed virtual machine sets the time.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.jump(0)

    def jump(self, seconds: float) -> None:
        """To so many seconds ahead of the true time; negative: behind."""
        self._file.write_text(f"{seconds:+.3f}", encoding="ascii")

    @property
    def prefix(self) -> list[str]:
        """Of a command. What is loaded is inherited; a forked process may choose another clock by `own`."""
        library = _library()
        if library is None:
            return []
        variables = {
            "LD_PRELOAD": str(library),
            "FAKETIME_CACHE_DURATION": str(_SEEN_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # A mend for a libc of long ago, which makes every wait for Python's lock a hundred times as long.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            **self.own,
        }
        return ["env", *(f"{name}={value}" for name, value in variables.items())]

    @property
    def own(self) -> dict[str, str]:
        """What says that a process goes by this clock."""
        return {"FAKETIME_TIMESTAMP_FILE": str(self._file)}


def settable() -> bool:
    """Whether clocks can be set on this machine."""
    return _library() is not None
