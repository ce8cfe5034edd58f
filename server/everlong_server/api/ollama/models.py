"""`/api/tags`, `/api/ps`, `/api/show`, `/api/version`, `/api/embed` and `/api/embeddings`: the served models, and vectors of texts."""

from __future__ import annotations

import hashlib
import json
import time
from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from everlong_models.catalogue.entry import Entry, entries
from everlong_server.api.bodies.json_body import JsonRoute
from everlong_server.api.caller_services import CallerServices
from everlong_server.api.ollama.answers import OLLAMA_ERRORS
from everlong_server.api.ollama.requests import plain_name
from everlong_server.api.ollama.schemas import (
    OllamaDescription,
    OllamaDetails,
    OllamaEmbed,
    OllamaEmbedding,
    OllamaEmbeddings,
    OllamaEmbedPrompt,
    OllamaModel,
    OllamaModels,
    OllamaShow,
    OllamaVersion,
)
from everlong_server.api.streams.disconnect import run_unless_disconnected
from everlong_server.api.translation.embeddings import embed_input, encoded
from everlong_server.api.views import embedding_model_view
from everlong_server.errors import InvalidRequest
from everlong_server.services import NamedModel, Services

OLLAMA_VERSION = "0.13.0"
"""The version of Ollama whose chat, generate and embed this server follows. Clients refuse servers that are too old for them."""

router = APIRouter(prefix="/api", tags=["ollama"], responses=OLLAMA_ERRORS, route_class=JsonRoute)


@router.head("/version", include_in_schema=False)
@router.get("/version")
async def version(request: Request) -> OllamaVersion:
    """Returns the version of Ollama whose API the server follows, and the server's own."""
    return OllamaVersion(version=OLLAMA_VERSION, everlong=request.app.version)


@router.head("/tags", include_in_schema=False)
@router.get("/tags")
async def tags(services: CallerServices) -> OllamaModels:
    """Lists the models that answer questions, loaded or not, and the embedding model if the server has one."""
    return OllamaModels(models=_models(services))


@router.get("/ps")
async def running(services: CallerServices) -> OllamaModels:
    """Lists the loaded models."""
    return OllamaModels(models=_models(services, loaded=True))


@router.post("/show")
async def show(body: OllamaShow, services: CallerServices) -> OllamaDescription:
    """Describes a model."""
    if not (name := plain_name(body.model or body.name)):
        raise InvalidRequest("model: Field required", param="model", code="missing_parameter")
    embedding = embedding_model_view(services)
    if embedding is not None and name == embedding.id:
        (found,) = (each for each in _models(services) if each.name == name)
        return OllamaDescription(
            license="", parameters="", template="", details=found.details, model_info={}, capabilities=["embedding"],
            modified_at=found.modified_at,
        )  # fmt: skip
    named = services.shared.models.named(name)
    known, found = _known(named), _answering_model(services, named)
    info: dict[str, Any] = {"general.architecture": found.details.family, "general.basename": named.name}
    if named.shared is not None:
        model = named.shared.model
        info |= {
            "everlong.memory": model.memory_name,
            "everlong.segment_length": model.segment_length,
            "everlong.state_bytes": model.state_bytes,
        }
    if known is not None:
        info["general.parameter_count"] = known.parameters
    return OllamaDescription(
        license=known.licence if known else "",
        parameters="",
        template="" if named.shared is None else named.shared.model.tokenizer.chat_template or "",
        details=found.details,
        model_info=info,
        capabilities=["completion", "tools"] if named.tools else ["completion"],
        modified_at=found.modified_at,
    )


@router.post("/embed", response_model=OllamaEmbeddings)
async def embed(body: OllamaEmbed, request: Request, services: CallerServices) -> Response:
    """Returns a vector of length 1 for each text."""
    content = await run_unless_disconnected(request, _embeddings(services, body))
    return Response(content, media_type="application/json")


@router.post("/embeddings")
async def embed_prompt(body: OllamaEmbedPrompt, request: Request, services: CallerServices) -> OllamaEmbedding:
    """Returns a vector of length 1 for one text. The older form of `/api/embed`."""
    model, prompt = plain_name(body.model), body.prompt or None
    vectors, _ = await run_unless_disconnected(request, embed_input(services, model, prompt, None, "prompt"))
    return OllamaEmbedding(embedding=vectors[0].tolist() if prompt else [])


async def _embeddings(services: Services, body: OllamaEmbed) -> bytes:
    """Return the response as JSON."""
    started = time.perf_counter_ns()
    vectors, tokens = await embed_input(services, plain_name(body.model), body.input, body.dimensions)
    embeddings = await encoded(vectors, lambda part, _: part.tolist())
    duration = time.perf_counter_ns() - started
    head = {"model": body.model, "total_duration": duration, "load_duration": 0, "prompt_eval_count": tokens}
    return b'%s, "embeddings": %s}' % (json.dumps(head)[:-1].encode(), embeddings)


def _models(services: Services, *, loaded: bool = False) -> list[OllamaModel]:
    """Return the models that answer questions and, if there is one, the embedding model. `loaded`: only those that are loaded."""
    named = [model for model in services.shared.models.all if not loaded or model.shared is not None]
    found, since = [_answering_model(services, model) for model in named], _since(services)
    embedding = embedding_model_view(services)
    if embedding is not None:
        bert = OllamaDetails(format="", family="bert", families=["bert"], parameter_size="", quantization_level="")
        found.append(
            OllamaModel(
                name=embedding.id,
                model=embedding.id,
                modified_at=since,
                size=0,
                digest=embedding.fingerprint,
                details=bert,
            )
        )
    return found


def _answering_model(services: Services, model: NamedModel) -> OllamaModel:
    known = _known(model)
    family = known.architecture if known else ""
    details = OllamaDetails(
        format="gguf" if known else "safetensors",
        family=family,
        families=[family] if family else [],
        parameter_size=_short(known.parameters) if known else "",
        quantization_level="",
    )
    return OllamaModel(
        name=model.name,
        model=model.name,
        modified_at=_since(services),
        size=known.bytes if known else 0,
        digest=model.fingerprint or hashlib.sha256(model.name.encode()).hexdigest(),  # `ollama list` shows 12 digits
        details=details,
        loaded=model.shared is not None,
    )


def _known(model: NamedModel) -> Entry | None:
    """Return the model's backbone in the catalogue. That of a model folder is known once it is loaded."""
    return entries().get(model.name if model.shared is None else model.shared.model.backbone_name or "")


def _since(services: Services) -> str:
    return datetime.fromtimestamp(services.shared.started_at, UTC).isoformat()


def _short(parameters: int) -> str:
    return f"{parameters / 1e9:.1f}B" if parameters >= 1e9 else f"{parameters / 1e6:.0f}M"
