"""Downloads a file from the Hugging Face hub."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tqdm import tqdm

from everlong_models.catalogue.bar import Bar
from everlong_models.catalogue.entry import Entry, HubSource
from everlong_models.errors import PullError

_PROBE_SECONDS = 10.0


class _Silent(tqdm):  # type: ignore[misc]  # it has no types
    """The hub's bar is not shown: ours is."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.pop("name", None)  # an argument of the hub's own bar
        super().__init__(*args, **{**options, "disable": True})


def fetch_from_hub(entry: Entry, source: HubSource, partial: Path, scratch: Path, bar: Bar) -> None:
    """Download the entry's file to `partial`. The hub's client resumes an interrupted download. Raises `PullError`."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url  # noqa: PLC0415 - takes a second

    folder = scratch / "hub"
    try:
        # Asked once: the client would try for half a minute before it takes the hub for unreachable.
        get_hf_file_metadata(hf_hub_url(source.hub, entry.file), timeout=_PROBE_SECONDS)
        with bar.watching(folder, 0, entry.bytes):
            file = hf_hub_download(source.hub, entry.file, local_dir=folder, tqdm_class=_Silent)
    except Exception as error:  # the client passes on all errors of its HTTP library
        raise PullError(f"the model hub ({source.hub}): {_first_line(error)}") from error
    os.replace(file, partial)


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none, as some timeouts."""
    return (str(error).splitlines() or [type(error).__name__])[0]
