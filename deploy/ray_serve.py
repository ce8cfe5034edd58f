"""everlong on a Ray cluster: the application that `everlong serve` serves, as the ingress of Ray Serve.

    EVERLONG_REDIS_URL=redis://… EVERLONG_BLOB_URL=file:///shared/documents EVERLONG_DEVICE=cuda \
        serve run --working-dir . ray_serve:app replicas=4 gpus=1

Install `everlong[ray]` on every node. Ray copies this folder there. Replicas get the EVERLONG_* variables of the deploying process.
"""

from __future__ import annotations

import logging
import os

from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from ray import serve
from ray.serve import Application

from everlong_models import Model
from everlong_server.app import create_app
from everlong_server.process.loading import load, model_source
from everlong_server.process.serving import Loads
from everlong_server.settings import PREFIX, SettingsError, load_settings

log = logging.getLogger("everlong_server.ray")


class Scale(BaseModel):
    """The number of replicas and the resources of each."""

    model_config = ConfigDict(extra="forbid")

    replicas: int = Field(1, ge=1)
    gpus: float = Field(0, ge=0)
    cpus: float = Field(1, gt=0)
    most_on_a_node: int | None = Field(
        None, ge=1, description="maximum number of replicas on one node; unset: as many as fit"
    )


@serve.deployment
@serve.ingress()
class Everlong:
    """One server. Ray counts it as started once its model is loaded."""

    def __init__(self) -> None:
        # Ray's proxies listen for other machines: without EVERLONG_AUTH=off, requests need a key.
        self._settings = load_settings(host="0.0.0.0")  # noqa: S104
        self._failed: BaseException | None = None
        self._app: FastAPI | None = None
        self._model = load(self._settings, log.info)

    def __serve_build_asgi_app__(self) -> FastAPI:
        """Return the application."""
        assert self._settings.redis_url is not None, "`app` checks it before the deployment"
        others = model_source(self._settings, Loads().start)
        self._app = create_app(self._settings, self._settings.redis_url, self._loaded, others, on_failure=self._fail)
        return self._app

    async def _loaded(self) -> Model:
        return self._model

    def _fail(self, error: BaseException) -> None:
        log.error("the server could not start: %s", error)
        self._failed = error

    def check_health(self) -> None:
        """Raise an error if the replica cannot serve. Ray then replaces it."""
        if self._failed is not None:
            raise RuntimeError("the server could not start") from self._failed
        if self._app is not None and self._app.state.shared is not None and not self._app.state.shared.engine.alive:
            raise RuntimeError("the device failed")


def app(scale: Scale) -> Application:
    """Build the application for `serve run` and `serve deploy`.

    Raises `SettingsError` if the settings do not name a shared Redis and a shared blob store.
    """
    settings = load_settings(host="0.0.0.0")  # noqa: S104 - as each replica
    if settings.redis_url is None:
        raise SettingsError("EVERLONG_REDIS_URL is not set: replicas on several nodes need a shared Redis")
    if settings.blob_url is None:
        raise SettingsError("EVERLONG_BLOB_URL is not set: replicas on several nodes need a shared blob store")
    variables = {name: value for name, value in os.environ.items() if name.startswith((PREFIX, "OTEL_"))}
    return Everlong.options(  # type: ignore[attr-defined]
        num_replicas=scale.replicas,
        max_replicas_per_node=scale.most_on_a_node,
        # Above the server's own limit, which answers 429 with Retry-After.
        max_ongoing_requests=(settings.max_streams or 64) + settings.max_queued + 1000,
        graceful_shutdown_timeout_s=settings.drain_seconds + 10,
        ray_actor_options={
            "num_cpus": scale.cpus, "num_gpus": scale.gpus, "runtime_env": {"env_vars": variables},
        },
    ).bind()  # fmt: skip
