"""The objects of the API as pydantic models: the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from everlong_models import SamplingParams

# Query parameters of the endpoints that list objects
PageLimit = Annotated[int, Query(ge=1, le=100)]
AfterId = Annotated[str | None, Query(max_length=128, description="last id of the previous page")]

OCR_LANGUAGE = (
    "language of the text in scanned pages and pictures, a value of EVERLONG_OCR_LANGUAGE; default: that of the server"
)
REUSE = "return your document of the same file, if there is one that could be read, instead of a new one"


class Wire(BaseModel):
    """Base of all objects. Unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")


class Nullable(BaseModel):
    """Treats a field that is null as left out, because the SDKs of OpenAI, Anthropic and Ollama send either."""

    @model_validator(mode="before")
    @classmethod
    def _given(cls, value: object) -> object:
        return {name: given for name, given in value.items() if given is not None} if isinstance(value, dict) else value


class DocumentError(Wire):
    """Why a document could not be read."""

    message: str
    code: str


class DocumentVectors(Wire):
    """How far a document can be searched by meaning. Questions are answered meanwhile, by a search for words."""

    progress: float = Field(description="share of the text that has vectors, 0 to 1, as this server knows")


class DocumentNote(Wire):
    """Something that the conversion left out of the text, or repaired."""

    text: str
    page: int | None = Field(description="page or slide that it is about, counted from 1")
    part: str | None = Field(description="chapter, attachment or other part of the file that it is about")


class Document(Wire):
    """An uploaded text and the progress of its reading."""

    id: str
    object: Literal["document"] = "document"
    filename: str | None
    status: Literal["queued", "reading", "ready", "failed"]
    format: str | None = Field(
        description="id of the format that the text was converted from (GET /v1/formats); null: uploaded as text"
    )
    notes: list[DocumentNote] = Field(
        description="what the conversion left out of the text, or repaired; at most 100 and a few"
    )
    pages: bool = Field(
        False, description="whether GET /v1/documents/{id}/pages/{page}.png draws its pages, as for a PDF"
    )
    bytes: int = Field(description="size of the text in bytes of UTF-8")
    tokens: int = Field(description="tokens read so far")
    segments: int = Field(description="full segments read into the memory")
    progress: float | None = Field(
        description="share of the text that has been read, 0 to 1; null before reading starts"
    )
    tokens_per_second: float | None
    model: str
    state_digest: str | None = Field(description="SHA-256 of the state's tensors, once ready")
    error: DocumentError | None
    vectors: DocumentVectors | None = Field(description="null: the server searches by words alone")
    created_at: float = Field(description="Unix time in seconds")


class DocumentText(Wire):
    """A part of a document's text: bytes `start_byte` to `end_byte` of its UTF-8, not counting a byte-order mark."""

    document: str
    object: Literal["document.text"] = "document.text"
    start_byte: int
    end_byte: int
    bytes: int = Field(description="size of the whole text in bytes")
    text: str


class Conversion(Wire):
    """How far the conversion of an uploaded file to text is."""

    object: Literal["conversion"] = "conversion"
    page: int | None = Field(
        description="the page that is being read, counted from 1; null: the file has no pages, or is being received"
    )
    pages: int | None = Field(description="number of pages")


class Format(Wire):
    """An accepted file format. The server recognises it by the file's content. The name and the declared type only decide
    between formats whose files are text, such as HTML, and text."""

    id: str = Field(description='for example "pdf"; "text" for UTF-8 text, which is stored as it is')
    object: Literal["format"] = "format"
    name: str
    extensions: list[str] = Field(description="usual extensions; text files may have any")
    media_types: list[str]


class FormatList(Wire):
    """The accepted file formats and the size limit."""

    object: Literal["list"] = "list"
    data: list[Format]
    max_bytes: int = Field(description="maximum size of a file, and of the text converted from it")


class Deleted(Wire):
    """The deleted object."""

    id: str
    object: Literal["document.deleted", "session.deleted"]
    deleted: Literal[True] = True


RECALL_DEFAULT = "default for the session's messages; false: no passages; null: the server's default"


class Recall(Wire):
    """How many passages of the documents the server puts verbatim before the question. Fields that a message leaves out take
    the session's values, then the server's."""

    passages: int | None = Field(None, ge=0, le=96, description="maximum number of passages; 0: none")
    tokens: int | None = Field(
        None, ge=1, description="maximum number of tokens of all passages; at most the model's context"
    )


class Usage(Wire):
    """Token counts. `reused_tokens` of the prompt's tokens were in memory and not prefilled again."""

    prompt_tokens: int
    completion_tokens: int
    reused_tokens: int


_OFFSET_MISSING = "missing in answers of older versions, and if the document was deleted in the meantime"


class Evidence(Wire):
    """A passage that the model saw verbatim: `text[start:end]` of the document. `start` and `end` count characters,
    `start_byte` and `end_byte` count bytes of UTF-8; both exclude a byte-order mark. `start_token` and `end_token` count
    tokens of the document's text, from 0, and include each token that overlaps the passage."""

    document: str
    start: int
    end: int
    start_byte: int
    end_byte: int
    start_token: int | None = Field(None, description=_OFFSET_MISSING)
    end_token: int | None = Field(None, description=_OFFSET_MISSING)
    text: str
    score: float = Field(description="1 ÷ the place of the passage in the order of the search")
    page: int | None = Field(None, description="page of a PDF on which the passage begins")
    section: str | None = Field(
        None, description="where the passage is: a heading, a sheet, a file of an archive, or a printed page number"
    )


class Citation(Wire):
    """A sentence of an answer, `content[start:end]`, rests on a passage: on `text[document_start:document_end]` of the
    document. The server finds citations by comparing words. All offsets count characters, like those of `Evidence`."""

    start: int
    end: int
    evidence: int = Field(description="position of the passage in the answer's `evidence`, from 0")
    document: str
    document_start: int
    document_end: int
    filename: str | None
    page: int | None = Field(None, description="page that the cited part begins on, if the document has pages")
    section: str | None = Field(None, description="where the cited part begins, as `section` of `Evidence`")


class UpdateSession(Wire):
    """The fields of a session that can be changed. Fields that are left out keep their values."""

    title: str | None = Field(
        None, min_length=1, max_length=200, pattern=r"\S", description="title; null: taken from the next question"
    )
    recall: Recall | Literal[False] | None = Field(None, description=RECALL_DEFAULT)


class Session(Wire):
    """Messages and the memory that the server keeps for them. The memory starts as a copy of the documents' state."""

    id: str
    object: Literal["session"] = "session"
    title: str | None = Field(description="given to it, or the first question, shortened; null: none yet")
    documents: list[str]
    model: str
    status: Literal["reading", "ready", "failed"] = Field(
        description="reading: messages are answered from passages alone until the documents are read; with recall off, they are refused"
    )
    position: int = Field(description="tokens of context: documents and messages")
    messages: int
    recall: Recall | Literal[False] | None = Field(
        description="default for the session's messages; null: the server's default"
    )
    state_bytes: int
    state_digest: str | None
    created_at: float
    parent: str | None = Field(None, description="the session that this one was branched off from; null: from none")
    client: str | None = Field(
        None,
        description="the program that created it: the value of its X-Everlong-Client header (the page sends `page`); api: a request "
        "without the header; null: an older version of the server did not store it",
    )
    answering: bool = Field(False, description="a message is being answered; another one is refused meanwhile")


AnswerToContinue = Annotated[
    Annotated[bool, Tag("Last")] | Annotated[str, Field(pattern="^msg_", max_length=128), Tag("Id")],
    Discriminator(lambda value: "Id" if isinstance(value, str) else "Last"),
]
"""True: the last answer. A message's id: the last answer, if it has this id."""


class CreateMessage(SamplingParams):
    """A message to a session, and the sampling parameters of its answer."""

    content: str = Field(min_length=1, pattern=r"\S", description="text of the message")
    stream: bool = Field(False, description="return server-sent events")
    recall: Recall | Literal[False] = Field(default_factory=Recall, description="false: no passages")
    instructions: str | None = Field(
        None,
        min_length=1,
        max_length=4000,
        description='how to answer, such as "Answer in German.": a system message for this answer alone, which is not listed among the '
        "session's messages",
    )
    on_disconnect: Literal["cancel", "finish"] = Field(
        "cancel",
        description="what the server does if the client disconnects before the answer is complete. cancel: it cancels the answer and "
        "leaves the session unchanged. finish: it completes the answer; meanwhile `running` of the session's messages has its text so far",
    )
    continue_answer: AnswerToContinue = Field(
        False,
        description="extend the last answer, which reached its limit of tokens: true, or the answer's id, which is refused if it is not the "
        "last answer's; `content` and `recall` are not used, `instructions` and `json_schema` are refused",
    )
    model: str | None = Field(None, max_length=256, description="name of the session's model; any other is refused")


class Message(Wire):
    """A message of a session. A user's message has no `finish_reason` and no `usage`."""

    id: str
    object: Literal["message"] = "message"
    role: Literal["user", "assistant"]
    content: str
    created_at: float
    session: str | None = None
    model: str | None = None
    finish_reason: Literal["stop", "length", "repetition", "cancelled"] | None = Field(
        None, description="repetition: the answer began to repeat itself over and over, and was cut there"
    )
    usage: Usage | None = None
    seed: int | None = None
    logprobs: list[dict[str, Any]] | None = None
    evidence: list[Evidence] | None = None
    citations: list[Citation] | None = Field(
        None, description="by sentence, in the order of the answer; none for a sentence that no passage supports"
    )
    memory_progress: float | None = Field(
        None,
        description="the documents were still being read, so the answer rests on its evidence alone: the share that was read, 0 "
        "to 1. Null: the memory had read them",
    )
    standalone_question: str | None = Field(
        None,
        description="the question as it was searched for and answered, if it referred to the conversation and was rewritten",
    )
    agreement: float | None = Field(
        None,
        description="mean similarity of the server's other answers to this one, 0 to 1. Below 0.4, this answer is probably "
        "wrong. Null: there was no vote",
    )


class DocumentList(Wire):
    """A page of documents, newest first."""

    object: Literal["list"] = "list"
    data: list[Document]
    has_more: bool


class UploadedArchive(Wire):
    """The documents that were made of an archive's files, in its order."""

    object: Literal["list"] = "list"
    data: list[Document]
    has_more: Literal[False] = False
    notes: list[DocumentNote] = Field(description="files in the archive that were left out, and why")


class SessionList(Wire):
    """A page of sessions, newest first."""

    object: Literal["list"] = "list"
    data: list[Session]
    has_more: bool


class RunningTurn(Wire):
    """A message that is being answered, sent with `on_disconnect` "finish". It is not among the session's messages yet."""

    id: str = Field(description="id of the answer")
    question: str
    created_at: float
    evidence: list[Evidence] | None = Field(description="missing before the search has ended")
    text: str = Field(description="text of the answer so far, up to a second old")
    continues: bool = Field(False, description="it extends the last message, with whose text it begins")


class MessageList(Wire):
    """All messages of a session, oldest first."""

    object: Literal["list"] = "list"
    data: list[Message]
    has_more: Literal[False] = False
    running: RunningTurn | None = Field(
        None, description="the message that is being answered, if its `on_disconnect` is finish"
    )


class ErrorDetail(Wire):
    """An error. Programs read `type` and `code`; `param` names the invalid field."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorBody(Wire):
    """The body of every error response."""

    error: ErrorDetail
