"""The objects of OpenAI's completions that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from everlong_server.api.openai.chat_schemas import CachedTokens, Seed, StreamOptions
from everlong_server.api.schemas import Nullable, Wire
from everlong_server.api.translation.fields import ClientSampling

MAX_CHOICES = 128
"""Maximum number of prompts × `n`."""
TokenId = Annotated[int, Field(ge=0, strict=True)]
Tokens = list[TokenId]


def _prompt_kind(value: object) -> str | None:
    if isinstance(value, str):
        return "Text"
    first = value[0] if isinstance(value, list) and value else None
    return {str: "Texts", int: "Tokens", list: "TokenLists"}.get(type(first))


Prompt = Annotated[
    Annotated[str, Tag("Text")]
    | Annotated[list[str], Field(max_length=MAX_CHOICES), Tag("Texts")]
    | Annotated[Tokens, Tag("Tokens")]
    | Annotated[list[Tokens], Field(max_length=MAX_CHOICES), Tag("TokenLists")],
    Discriminator(
        _prompt_kind,
        custom_error_type="prompt",
        custom_error_message="prompt must be a string, a list of strings, a list of token ids, or a list of such lists",
    ),
]


class CreateCompletion(Nullable, ClientSampling):
    """A text to be continued. Takes OpenAI's fields and those of a native message."""

    model: str = Field(max_length=256)
    prompt: Prompt
    max_tokens: int = Field(
        16, ge=0, le=1_000_000, description="0: no text; with `echo` and `logprobs`, scores the prompt"
    )
    logprobs: int | None = Field(  # type: ignore[assignment]  # a number here
        None, ge=0, le=20, description="number of likeliest tokens with each token's log-probability"
    )
    top_logprobs: Literal[0] = Field(0, description="not supported: `logprobs` is the number of likeliest tokens")
    stop_repetition: bool = Field(
        False,
        description="end a text that repeats itself over and over, and drop what it repeats. No effect with `ignore_eos` or `json_schema`",
    )
    echo: bool = Field(False, description="return the prompt before the text, with `logprobs` of its tokens")
    n: int = Field(1, ge=1, le=MAX_CHOICES, description="number of texts for each prompt")
    best_of: Literal[1] = Field(1, description="only 1: a text is not generated several times to choose the best")
    suffix: Literal[""] = Field("", description="not supported")
    seed: Seed | None = Field(None, description="seed of the sampling; the same seed gives the same text")
    stream: bool = False
    stream_options: StreamOptions = Field(default_factory=StreamOptions)
    user: str | None = Field(None, max_length=512, description="ignored")


class CompletionLogprobs(Wire):
    """Log-probabilities of a text's tokens, in lists of one length. Those of a prompt's first token are null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Wire):
    """A text."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    stop_reason: Literal["repetition"] | None


class CompletionUsage(Wire):
    """Token counts of all prompts and texts."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: CachedTokens


class Completion(Wire):
    """Continued texts."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
