"""The Python client of everlong, the long-context inference server.

from everlong_client import Everlong

with Everlong("http://127.0.0.1:8080") as client:
    document = client.documents.wait(client.documents.upload("book.txt").id)
    session = client.sessions.create([document.id])
    print(client.sessions.send(session.id, "Who is the narrator?").content)
"""

from everlong_client.async_client import AsyncEverlong
from everlong_client.async_streams import AsyncConversation, AsyncMessageStream
from everlong_client.client import Everlong
from everlong_client.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AuthenticationError,
    ConflictError,
    DocumentNotReadyError,
    EverlongError,
    InternalServerError,
    NotFoundError,
    NotSentError,
    PayloadTooLargeError,
    RateLimitError,
    ReadingFailedError,
    ServiceUnavailableError,
    SessionBusyError,
    StreamError,
    UnexpectedAnswerError,
    UnprocessableEntityError,
    UnsupportedMediaTypeError,
)
from everlong_client.streams import Conversation, MessageStream
from everlong_client.transport.wire import VERSION as __version__  # noqa: N811  # the name that Python expects
from everlong_client.types.document import Document, DocumentNote, DocumentText, Failure, UploadedArchive
from everlong_client.types.event import (
    Event,
    OtherEvent,
    ResponseCompleted,
    ResponseCreated,
    ResponseEvidence,
    TextDelta,
)
from everlong_client.types.format import Format, Formats
from everlong_client.types.memory import Memory, MemoryDocument, MemoryLayer, MemoryPart, MemoryPhrase, Quote
from everlong_client.types.message import Citation, Evidence, Message, Recall, Sampling, Usage
from everlong_client.types.model import Model
from everlong_client.types.search import FoundPassage, SearchFilters
from everlong_client.types.session import Session

__all__ = [
    "APIConnectionError", "APIStatusError", "APITimeoutError", "AsyncConversation", "AsyncEverlong",
    "AsyncMessageStream", "AuthenticationError", "Citation", "ConflictError", "Conversation", "Document", "DocumentNotReadyError", "DocumentNote",
    "DocumentText",
    "Event", "Everlong", "EverlongError", "Evidence", "Failure", "Format", "Formats", "FoundPassage", "InternalServerError", "Memory", "MemoryDocument",
    "MemoryLayer", "MemoryPart", "MemoryPhrase", "Message", "MessageStream", "Model", "NotFoundError", "NotSentError",
    "OtherEvent", "PayloadTooLargeError", "Quote", "RateLimitError", "ReadingFailedError", "Recall",
    "ResponseCompleted", "ResponseCreated", "ResponseEvidence", "Sampling", "SearchFilters", "ServiceUnavailableError", "Session",
    "SessionBusyError", "StreamError", "TextDelta", "UnexpectedAnswerError", "UnprocessableEntityError",
    "UnsupportedMediaTypeError", "UploadedArchive", "Usage", "__version__",
]  # fmt: skip
