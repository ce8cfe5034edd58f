"""`TenantBatches`: creates, lists and cancels the batches of one tenant, and receives their input files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from everlong_server.engine.device.engine import Engine
from everlong_server.engine.documents.ingest import FileSource
from everlong_server.engine.documents.text_checker import clean_filename
from everlong_server.errors import Conflict, InvalidRequest, ServerError, TooLarge
from everlong_server.observability.tracing import current_span
from everlong_server.store.batches.batches import Batches
from everlong_server.store.batches.files import BatchFile, BatchFiles
from everlong_server.store.batches.records import Batch, BatchError, encoded_errors
from everlong_server.store.idempotency import IdempotencyRecord
from everlong_server.store.jobs import Jobs
from everlong_server.store.records import now
from everlong_server.store.tenants.quota import Quota
from everlong_server.store.texts.blobs import Blobs, DiscardingWriter

WINDOW_SECONDS = 24 * 3600.0
"""Time after which a batch that is not completed expires."""


@dataclass(frozen=True, slots=True)
class TenantBatches:
    """The batches of one tenant. `max_bytes`: largest input file."""

    engine: Engine
    store: Batches
    files: BatchFiles
    blobs: Blobs
    jobs: Jobs
    quota: Quota
    max_bytes: int

    async def add_file(self, source: FileSource, record: IdempotencyRecord) -> BatchFile:
        """Receive and store an input file, durably. For a retry of a completed request, only compares the content with the first one's.

        Its requests are checked when a batch is created. Raises `TooLarge`, `InvalidRequest` or `RateLimited`.
        """
        self.engine.require_running()
        file_id, digest, size = f"file_{record.id}", hashlib.sha256(), 0
        exists = record.answer is not None or (not record.first and await self.files.exists(file_id))
        if not exists:
            await self.quota.require_bytes(source.announced_bytes)
        writer = DiscardingWriter() if exists else await self.blobs.create(file_id)
        async with writer:
            async for chunk in source.chunks():
                size += len(chunk)
                if size > self.max_bytes:
                    raise TooLarge(
                        f"the file is larger than the limit of {self.max_bytes} bytes for batches (EVERLONG_MAX_BATCH_BYTES)",
                        param="file",
                    )
                digest.update(chunk)
                await writer.write(chunk)
            if not size:
                raise InvalidRequest("file: the file is empty", param="file", code="empty_file")
            filename = clean_filename(source.filename or "") or f"{file_id}.jsonl"
            await record.check_same_request("upload", "batch", digest.hexdigest(), filename)
            await writer.commit()
        moment = now()
        file = BatchFile(file_id, "batch", filename, size, moment, moment + self.store.seconds)
        if exists:
            return file if record.answer is not None else await self.files.get(file_id)
        try:
            await self.files.create(file)
        except ServerError:  # refused; if Redis did not answer, it may still store the record
            if await record.is_owner() and not await self.files.exists(file_id):
                await self.blobs.delete(file_id)
            raise
        return file

    async def create(
        self,
        batch_id: str,
        input_file: str,
        endpoint: str,
        metadata: dict[str, str] | None,
        output_seconds: float | None,
    ) -> Batch:
        """Create a batch and queue it, or return the batch `batch_id` if it exists. Raises `NotFound`, `InvalidRequest` or `RateLimited`.

        `output_seconds`: how long its output files are kept; None: as long as a batch.
        """
        self.engine.require_running()
        if input_file.startswith("doc_"):
            raise InvalidRequest(
                f"input_file_id: {input_file[:64]!r} is a document: upload the requests with purpose 'batch'",
                param="input_file_id", code="invalid_purpose",
            )  # fmt: skip
        file = await self.files.get(input_file, "input_file_id")
        if file.purpose != "batch":
            raise InvalidRequest(
                f"input_file_id: the file has the purpose {file.purpose!r}, a batch needs the purpose 'batch'",
                param="input_file_id", code="invalid_purpose",
            )  # fmt: skip
        await self.quota.require_tokens()
        moment, kept = now(), self.store.seconds
        await self.files.extend(file, moment + kept)
        await self.store.create(
            Batch(
                batch_id, file.id, endpoint, self.engine.model.fingerprint, moment, moment + WINDOW_SECONDS,
                output_seconds or kept, metadata, current_span().traceparent, self.quota.tenant,
            )
        )  # fmt: skip
        return await self.store.get(batch_id)

    async def get(self, batch_id: str) -> Batch:
        """Return a batch. An open one whose model no server serves any more is ended. Raises `NotFound`."""
        batch = await self.store.get(batch_id)
        orphan = batch.is_open and batch.model != self.engine.model.fingerprint
        if orphan and not await self.jobs.has_replica_for(batch.model):
            end = "cancelled" if batch.status == "cancelling" else "failed"
            error = BatchError("model_not_found", "no server serves the model of this batch any more")
            fields = {"status": end, f"{end}_at": now(), "errors": encoded_errors((error,))}
            await self.store.end(batch_id, None, fields)
            return await self.store.get(batch_id)
        return batch

    async def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch. Its answered requests are kept. Raises `NotFound`, or `Conflict` if it has ended in another way."""
        await self.store.get(batch_id)
        status = await self.store.cancel(batch_id)
        if status not in ("cancelling", "cancelled", None):
            raise Conflict(
                f"batch {batch_id!r} is {status}: only a batch that is being checked or answered can be cancelled",
                param="batch_id", code=f"batch_{status}",
            )  # fmt: skip
        return await self.get(batch_id)
