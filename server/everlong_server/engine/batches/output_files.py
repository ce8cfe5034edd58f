"""The output files of a batch: the results of its requests, and those of the failed ones, each in the order of the input."""

from __future__ import annotations

from everlong_server.store.batches.files import BatchFile
from everlong_server.store.batches.records import Batch
from everlong_server.store.records import new_id, now
from everlong_server.store.texts.blobs import Blobs


def write_output_files(batch: Batch, blobs: Blobs, failed: int) -> tuple[BatchFile | None, BatchFile | None]:
    """Join the parts of a batch to its output file and its error file. None: there are no such results. Blocks.

    `failed`: number of failed requests.
    """
    return (
        _join(batch, blobs, "+", "output") if batch.completed else None,
        _join(batch, blobs, "-", "errors") if failed else None,
    )


def _join(batch: Batch, blobs: Blobs, mark: str, name: str) -> BatchFile:
    file_id, first = new_id("file"), mark.encode()
    with blobs.fill(file_id) as path, path.open("wb") as output:
        for part in batch.parts:
            with blobs.open(part) as results:
                output.writelines(line[1:] for line in results if line.startswith(first))
        size = output.tell()
    moment = now()
    return BatchFile(file_id, "batch_output", f"{batch.id}_{name}.jsonl", size, moment, moment + batch.output_seconds)
