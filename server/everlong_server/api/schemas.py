"""What goes over the wire, as pydantic models: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from everlong_models import SamplingParams


class Wire(BaseModel):
    """Requests refuse unknown fields."""

    model_config = ConfigDict(extra="forbid")


class DocumentError(Wire):
    """Why a document could not be read."""

    message: str
    code: str


class Document(Wire):
    """An uploaded text and how far it has been read."""

    id: str
    object: Literal["document"] = "document"
    filename: str | None
    status: Literal["queued", "reading", "ready", "failed"]
    format: str | None = Field(description="what the text was made of: pdf, docx, epub, html; null: it was text")
    bytes: int = Field(description="UTF-8 bytes of text")
    tokens: int = Field(description="tokens read so far")
    segments: int = Field(description="full segments read into the memory")
    progress: float | None = Field(description="0 … 1; null before reading has begun")
    tokens_per_second: float | None
    model: str
    state_digest: str | None = Field(description="SHA-256 of the state's tensors, once ready")
    error: DocumentError | None
    created_at: float = Field(description="Unix time in seconds")


class DocumentText(Wire):
    """A part of a document's text: bytes `start_byte` to `end_byte` of its UTF-8; a byte-order mark does not count."""

    document: str
    object: Literal["document.text"] = "document.text"
    start_byte: int
    end_byte: int
    bytes: int = Field(description="of the whole text")
    text: str


class Format(Wire):
    """A kind of file that can be uploaded. What a file is, its content tells, not its name."""

    id: Literal["text", "pdf", "docx", "epub", "html"]
    object: Literal["format"] = "format"
    name: str
    extensions: list[str] = Field(description="that such files usually have; text may have any")
    media_types: list[str]


class FormatList(Wire):
    """What this server makes texts of, and how much of it."""

    object: Literal["list"] = "list"
    data: list[Format]
    max_bytes: int = Field(description="of a file, and of the text that it becomes")


class Deleted(Wire):
    """What was deleted."""

    id: str
    object: Literal["document.deleted", "session.deleted"]
    deleted: Literal[True] = True


class Recall(Wire):
    """Passages of the documents that are put before the question, word for word. What a message leaves out, its session
    sets, or else the server."""

    passages: int | None = Field(None, ge=0, le=32, description="at most so many; 0 is none")
    tokens: int | None = Field(
        None, ge=1, description="what they may take together; at most what the model sees at once"
    )


class CreateSession(Wire):
    """A new session over documents, which are read one after the other into one memory."""

    documents: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(default_factory=list)
    model: str | None = Field(None, max_length=256, description="the served model's name; default: the served model")
    recall: Recall | Literal[False] | None = Field(
        None, description="for messages that say nothing of it; false: no passages; null: as the server does"
    )


class UpdateSession(Wire):
    """What of a session can be changed. What is not given stays."""

    title: str | None = Field(
        None, min_length=1, max_length=200, pattern=r"\S", description="for people; null: the next question gives one"
    )
    recall: Recall | Literal[False] | None = Field(
        None, description="for messages that say nothing of it; false: no passages; null: as the server does"
    )


class Session(Wire):
    """A fork of its documents' state plus the dialogue."""

    id: str
    object: Literal["session"] = "session"
    title: str | None = Field(
        description="the first question, in at most 80 characters, or what it was given; null: none yet"
    )
    documents: list[str]
    model: str
    status: Literal["reading", "ready", "failed"]
    position: int = Field(description="tokens of context: documents and dialogue")
    messages: int
    recall: Recall | Literal[False] | None = Field(
        description="for messages that say nothing of it; null: as the server does"
    )
    state_bytes: int
    state_digest: str | None
    created_at: float


class CreateMessage(SamplingParams):
    """A message to a session, and how its answer is drawn."""

    content: str = Field(min_length=1, description="what is said")
    stream: bool = Field(False, description="answer with server-sent events")
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")


class Usage(Wire):
    """Tokens. `reused_tokens` of the prompt's were held in memory and not read again."""

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int


_TOLD = "missing in answers of versions before there was one, and where the document was deleted meanwhile"


class Evidence(Wire):
    """A passage that the model had before it, word for word: `text[start:end]` of the document's text, counted in
    characters, or in bytes of its UTF-8; a byte-order mark does not count. In tokens: those of the text alone, counted
    from 0 by the model's tokenizer, that any of its characters are in."""

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    start_token: int | None = Field(None, description=_TOLD)
    end_token: int | None = Field(None, description=_TOLD)
    text: str
    score: float = Field(description="BM25")
    page: int | None = Field(None, description="where it begins, in a PDF")
    section: str | None = Field(None, description="the heading that it stands under, in Word, EPUB and HTML")


class Message(Wire):
    """A part of the dialogue. Those of the user have neither `finish_reason` nor `usage`."""

    id: str
    object: Literal["message"] = "message"
    role: Literal["user", "assistant"]
    content: str
    created_at: float
    session: str | None = None
    model: str | None = None
    finish_reason: Literal["stop", "length", "cancelled"] | None = None
    usage: Usage | None = None
    seed: int | None = None
    logprobs: list[dict[str, Any]] | None = None
    evidence: list[Evidence] | None = None


class Quote(Wire):
    """Words of a document, with the same offsets as `Evidence`."""

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    start_token: int
    end_token: int
    text: str


class MemoryPart(Wire):
    """A part of a memory, of one `layer` or, with null, of all."""

    name: str
    layer: int | None
    start: int = Field(description="it is made of the tokens of the context from here …")
    end: int = Field(description="… to here")
    slots: int = Field(description="what it has room for: tokens, positions, vectors, functions, associations")
    used: float = Field(
        description="how many of these it uses; the effective rank, a fraction, where it is not written slot by slot"
    )
    age: int = Field(description="tokens since it was last written")
    change: float | None = Field(
        description="by which share of its length the open segment would change it if it ended now; null where nothing "
        "can be said: it keeps tokens as they are, or there is no open segment"
    )


class MemoryPhrase(Wire):
    """Tokens of the context with much space."""

    start: int
    end: int
    space: float = Field(description="their share of the memory, 0 … 1")
    quote: Quote | None = Field(
        description="their words; null outside of documents, and for a document that was deleted"
    )


class MemoryLayer(Wire):
    """One layer of an ∞-former: a signal, in bins of equal space."""

    layer: int
    edges: list[float] = Field(
        description="positions in the context, in tokens, at the borders of the bins, one more than bins: the closer two "
        "are, the more space the tokens between them have"
    )
    attention: list[float] | None = Field(
        description="what each bin gets of the attention that the open segment gives, sums to 1; null without one"
    )
    phrases: list[MemoryPhrase] = Field(description="those with the most space, the largest first")


class MemoryDocument(Wire):
    """The tokens of the context that are a document's."""

    document: str
    start: int
    end: int


class SessionMemory(Wire):
    """What a session's memory holds, and how full it is. All positions are tokens of the context: documents and dialogue."""

    session: str
    object: Literal["session.memory"] = "session.memory"
    memory: str
    tokens: int = Field(description="read into the memory")
    segments: int = Field(description="full segments read into the memory")
    segment_length: int
    open: int = Field(description="tokens of the open segment, which are not in the memory yet")
    bytes: int = Field(description="of the memory, however much it has read")
    documents: list[MemoryDocument]
    parts: list[MemoryPart]
    layers: list[MemoryLayer] = Field(description="of an ∞-former")


class ServedModel(Wire):
    """The model that answers."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="Unix time in seconds since when this server serves it")
    owned_by: str = "everlong"
    backbone: str | None = Field(description="null for a model trained from scratch")
    memory: str
    memory_trained: bool | None = Field(
        description="false: the memory has no trained weights and answers nonsense; null: it has nothing to train"
    )
    segment_length: int
    state_bytes: int = Field(description="bytes of a session's memory, however long its documents are")
    fingerprint: str
    description: str


class DocumentList(Wire):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[Document]
    has_more: bool


class SessionList(Wire):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[Session]
    has_more: bool


class MessageList(Wire):
    """Oldest first."""

    object: Literal["list"] = "list"
    data: list[Message]
    has_more: Literal[False] = False


class ModelList(Wire):
    """The served models."""

    object: Literal["list"] = "list"
    data: list[ServedModel]


class CreateApiKey(Wire):
    """A new key of the caller's tenant."""

    name: str = Field("", max_length=100, description="what it is for, for people")
    scopes: list[Literal["read", "write", "admin"]] = Field(default=["read", "write"], min_length=1, max_length=3)
    expires_in_seconds: int | None = Field(None, ge=1, le=10**9, description="null: it does not end")


class ApiKey(Wire):
    """A key without its secret. Times are Unix times in seconds."""

    id: str
    object: Literal["api_key"] = "api_key"
    name: str
    scopes: list[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None


class NewApiKey(ApiKey):
    """With its secret, which is told once."""

    key: str


class ApiKeyList(Wire):
    """Newest first."""

    object: Literal["list"] = "list"
    data: list[ApiKey]


class Ticket(Wire):
    """Stands for the caller's key when one WebSocket is opened."""

    object: Literal["ticket"] = "ticket"
    ticket: str
    expires_at: float = Field(description="Unix time in seconds")


class ErrorDetail(Wire):
    """`code` is for programs, `param` names the field at fault."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Wire):
    """Every error of every endpoint."""

    error: ErrorDetail
