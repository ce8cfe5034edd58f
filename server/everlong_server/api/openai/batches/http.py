"""`/v1/batches`: files of requests that are answered in the background, when the server has nothing else to do."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import APIRouter

from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.errors import ERROR_RESPONSES
from everlong_server.api.idempotency import IdempotencyKey, content_of, run_once
from everlong_server.api.openai.batches import schemas
from everlong_server.api.schemas import AfterId, PageLimit
from everlong_server.store.batches.records import TIMES, Batch
from everlong_server.store.idempotency import IdempotencyRecord

router = APIRouter(prefix="/v1/batches", tags=["openai"], responses=ERROR_RESPONSES, route_class=JsonRoute)


@router.post("")
async def create(body: schemas.CreateBatch, services: CallerServices, key: IdempotencyKey = None) -> schemas.Batch:
    """Creates a batch and checks its input file in the background. Other requests go before those of batches."""

    async def make(record: IdempotencyRecord) -> schemas.Batch:
        kept = None if body.output_expires_after is None else float(body.output_expires_after.seconds)
        return _view(
            await services.batches.create(f"batch_{record.id}", body.input_file_id, body.endpoint, body.metadata, kept)
        )

    return await run_once(services, key, ("batch", content_of(body)), schemas.Batch, make)


@router.get("")
async def index(services: CallerServices, limit: PageLimit = 20, after: AfterId = None) -> schemas.BatchList:
    """Lists all batches, newest first."""
    batches, more = await services.batches.store.newest(limit, after)
    return schemas.BatchList.of([_view(batch) for batch in batches], more=more)


@router.get("/{batch_id}")
async def get(batch_id: str, services: CallerServices) -> schemas.Batch:
    """Returns a batch."""
    return _view(await services.batches.get(batch_id))


@router.post("/{batch_id}/cancel")
async def cancel(batch_id: str, services: CallerServices) -> schemas.Batch:
    """Cancels a batch. The results of the requests that are answered already are in its output file."""
    return _view(await services.batches.cancel(batch_id))


def _view(batch: Batch) -> schemas.Batch:
    times = {name: int(batch.times[name]) if name in batch.times else None for name in TIMES}
    errors = [schemas.BatchError(**asdict(error)) for error in batch.errors]
    return schemas.Batch(
        id=batch.id,
        endpoint=batch.endpoint,
        errors=schemas.BatchErrors(data=errors) if errors else None,
        input_file_id=batch.input_file,
        status=batch.status,
        output_file_id=batch.output_file,
        error_file_id=batch.error_file,
        created_at=int(batch.created_at),
        expires_at=int(batch.expires_at),
        request_counts=schemas.RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        metadata=batch.metadata,
        **times,
    )
