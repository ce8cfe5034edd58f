"""The options that several commands have, and the client that they describe."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from everlong_client.cli.terminal import fail
from everlong_client.client import Everlong

ASK = "Use a server"
"""The heading of the client's commands in the help."""


def _require_ids(documents: list[str] | None) -> list[str] | None:
    if documents and "" in documents:  # most likely an unset variable of a script
        fail("the document id must not be empty")
    return documents


def _require_finite(temperature: float | None) -> float | None:
    if temperature is not None and not math.isfinite(temperature):  # JSON cannot express it
        fail(f"--temperature must be a finite number, got {temperature}")
    return temperature


Url = Annotated[str, typer.Option("--url", envvar="EVERLONG_URL", help="The server's address.")]
ApiKey = Annotated[str | None, typer.Option("--api-key", envvar="EVERLONG_API_KEY", help="The API key.")]
DocumentIds = Annotated[
    list[str] | None,
    typer.Option("--document", help="The id of a document to ask about; may be repeated.", callback=_require_ids),
]
ModelName = Annotated[
    str | None, typer.Option("--model", help="The model to use, one of those that the server offers.")
]
MaxTokens = Annotated[
    int | None, typer.Option("--max-tokens", min=1, help="The maximum number of tokens of an answer.")
]
Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature", help="The sampling temperature; 0 always takes the likeliest token.", callback=_require_finite
    ),
]
Seed = Annotated[int | None, typer.Option("--seed", help="The sampling seed; the same seed gives the same answer.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def connect(url: str, api_key: str | None) -> Everlong:
    """Return a client of the server at `url`. Ends the command if the address or the key is invalid."""
    if url.rstrip("/").endswith("/v1"):  # the address that OpenAI's clients take
        fail(f"--url {url}: leave out /v1, which the commands add")
    try:
        return Everlong(url, api_key=api_key)
    except ValueError as error:
        fail(str(error))


def require_model(client: Everlong, model: str | None) -> None:
    """End the command if the server does not offer the model. Call it before anything is uploaded. Raises `EverlongError` if the server does not answer."""
    if model is not None and model not in (offered := [each.id for each in client.models.list()]):
        fail(f"--model {model}: unknown; the server offers {', '.join(offered)}")
