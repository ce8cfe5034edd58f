"""`python -m everlong_server.bench.llama FILE PORT POSITIONS THREADS`: llama.cpp's own server, as xllamacpp carries it."""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

from gguf import GGUFReader

_TRAINED = "llama.context_length"


def main(file: str, port: str, positions: str, threads: str) -> None:
    import xllamacpp  # noqa: PLC0415 - not installed everywhere; `with_positions` is asked where it is

    params = xllamacpp.CommonParams()
    params.model.path = file
    params.port = int(port)
    params.n_ctx = int(positions)
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = int(threads)
    server = xllamacpp.Server(params)  # its threads serve for as long as it lives
    signal.pause()
    del server


def with_positions(file: Path, positions: int, folder: Path) -> Path:
    """The weights; if they know fewer positions, a copy in `folder` that says so many: the server refuses what is longer,
    and takes no option for it."""
    if _trained(GGUFReader(file))[0] >= positions:
        return file
    folder.mkdir(parents=True, exist_ok=True)
    copy = folder / file.name
    shutil.copyfile(file, copy)
    reader = GGUFReader(copy, "r+")
    _trained(reader)[0] = positions
    reader.data.flush()
    return copy


def _trained(reader: GGUFReader):  # type: ignore[no-untyped-def] # a view of one number in the file
    field = reader.fields[_TRAINED]
    return field.parts[field.data[0]]


if __name__ == "__main__":
    main(*sys.argv[1:])
