"""The results of the tools, as objects whose JSON schemas the MCP server announces. Smaller than the client's own objects,
because a model reads them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel

from everlong_client.types.document import Document, DocumentText
from everlong_client.types.message import Message
from everlong_client.types.search import FoundPassage

_Result = TypeVar("_Result", bound=BaseModel)


class ListedDocument(BaseModel):
    """A document. `status` is queued, reading, ready or failed; `progress` goes from 0 to 1. Sizes are in bytes and tokens."""

    id: str
    filename: str | None
    status: str
    progress: float | None
    bytes: int
    tokens: int
    error: str | None


class DocumentPage(BaseModel):
    """A page of the list of documents. `next` is the value of `after` for the next page; null at the end."""

    documents: list[ListedDocument]
    next: str | None


class TextPart(BaseModel):
    """A part of a document's text. `next_start_byte` is where the next part begins; null at the end of the text."""

    document: str
    text: str
    start_byte: int
    end_byte: int
    total_bytes: int
    next_start_byte: int | None


class Source(BaseModel):
    """A passage that the answering model was shown. `start_byte` can be given to `read_document`."""

    document: str
    text: str
    page: int | None
    section: str | None
    start_byte: int
    end_byte: int


class Found(Source):
    """A passage that a search found. A higher `score` is a better match, 0 to 1."""

    filename: str | None
    score: float


class SearchResult(BaseModel):
    """The found passages, best first."""

    passages: list[Found]


class CitedSentence(BaseModel):
    """A sentence of the answer, and the position in `sources` of the passage that it rests on, from 0.

    `page` and `section`: where the cited part of the passage begins.
    """

    sentence: str
    source: int
    page: int | None
    section: str | None


class Answer(BaseModel):
    """An answer. Give `session` to `ask` again to continue the conversation. `finish_reason` "length": it was cut off.

    `memory_progress`: the share of the documents that had been read, if the answer rests on the search alone. `standalone_question`: the
    question that was searched for and answered, if the server rewrote a follow-up; null otherwise. If it is wrong, ask again with the names.
    `agreement`: how similar the model's other answers to the question are to this one, 0 to 1; null if there are none. Below 0.4, the answer
    is probably wrong: read the sources.
    """

    answer: str
    session: str
    sources: list[Source]
    citations: list[CitedSentence]
    finish_reason: str | None
    memory_progress: float | None
    standalone_question: str | None
    agreement: float | None


def listed(document: Document) -> ListedDocument:
    """Return a document as the tools show it."""
    return _shown(ListedDocument, document, error=document.error.message if document.error else None)


def text_part(part: DocumentText) -> TextPart:
    """Return a part of a text as the tools show it."""
    following = part.end_byte if part.end_byte < part.bytes else None
    return _shown(TextPart, part, total_bytes=part.bytes, next_start_byte=following)


def found(passages: Iterable[FoundPassage]) -> SearchResult:
    """Return the passages that a search found as the tools show them."""
    return SearchResult(passages=[_shown(Found, passage) for passage in passages])


def answer(message: Message, session: str) -> Answer:
    """Return an answer as the tools show it."""
    return Answer(
        answer=message.content,
        session=session,
        sources=[_shown(Source, passage) for passage in message.evidence],
        citations=[
            _shown(CitedSentence, cited, sentence=message.content[cited.start : cited.end], source=cited.evidence)
            for cited in message.citations
        ],
        finish_reason=message.finish_reason,
        memory_progress=message.memory_progress,
        standalone_question=message.standalone_question,
        agreement=message.agreement,
    )


def _shown(kind: type[_Result], source: object, /, **others: object) -> _Result:
    """Return a result with the fields of `source` that have its fields' names, and `others`."""
    same = {name: getattr(source, name) for name in kind.model_fields.keys() - others.keys()}
    return kind.model_validate(same | others)
