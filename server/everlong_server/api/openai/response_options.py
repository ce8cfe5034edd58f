"""The options of a response whose fields are objects: its format, its stream, its reasoning, and what it includes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from everlong_server.api.openai.chat_schemas import VERBOSITY, JsonSchema, ReasoningEffort, Verbosity
from everlong_server.api.openai.text_formats import FORMATS, JsonObjectFormat, TextFormat, format_kind
from everlong_server.api.schemas import Nullable, Wire


class ResponseJsonSchemaFormat(JsonSchema):
    """JSON that follows a schema."""

    type: Literal["json_schema"]


class TextConfig(Nullable, Wire):
    """The format of the answer."""

    format: Annotated[
        Annotated[TextFormat, Tag("TextFormat")]
        | Annotated[JsonObjectFormat, Tag("JsonObjectFormat")]
        | Annotated[ResponseJsonSchemaFormat, Tag("JsonSchemaFormat")],
        Discriminator(format_kind, custom_error_type="format", custom_error_message=FORMATS),
    ] = Field(default_factory=lambda: TextFormat(type="text"))


class RequestedText(TextConfig):
    """The format of the answer, in a request."""

    verbosity: Verbosity | None = Field(None, exclude=True, description=VERBOSITY)


class ResponseStreamOptions(Nullable, Wire):
    """Options of a stream. Padding that hides the length of tokens is not supported."""

    include_obfuscation: Literal[False] = False


class Reasoning(Nullable, Wire):
    """No effect: the models do not reason before they answer, so responses have no items of the type reasoning."""

    effort: ReasoningEffort | None = Field(None, description="ignored")
    summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="ignored")
    generate_summary: Literal["auto", "concise", "detailed"] | None = Field(None, description="ignored")
    context: Literal["auto", "current_turn", "all_turns"] | None = Field(None, description="ignored")
    mode: str | None = Field(None, max_length=64, description="ignored")


Includable = Literal[
    "message.output_text.logprobs", "file_search_call.results", "reasoning.encrypted_content", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]  # fmt: skip
"""What a response may include. All but the first two are parts of items that responses do not have here."""
