"""The objects of Ollama's API that the server supports: a source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from everlong_models.generate.sampling import MAX_STOP_STRINGS, MAX_TOP_LOGPROBS, StopString
from everlong_server.api.ollama.tool_schemas import OllamaTool, OllamaToolCall
from everlong_server.api.schemas import Nullable, Recall, Wire
from everlong_server.api.translation.embeddings import Texts
from everlong_server.api.translation.fields import MAX_MESSAGES, MAX_TOOLS, TopK, TopP

_IGNORED = "ignored: the server's settings decide"
_ONE = "only the value without effect"
_WHOLE = "ignored: the server always reads the whole conversation"
_Number = Annotated[float, Field(allow_inf_nan=False)]


def _refuse_images(value: object) -> object:
    if value:
        raise ValueError("images are not supported: the models of this server read text")
    return value


Images = Annotated[list[Any] | None, BeforeValidator(_refuse_images)]


class OllamaOptions(Nullable, Wire):
    """Sampling parameters. Those that choose how a model is loaded are ignored."""

    num_predict: int | None = Field(
        None, ge=-2, le=1_000_000, description="maximum number of tokens; -1 and -2: 1,000,000; default: 512"
    )
    seed: int | None = Field(None, ge=-1, lt=2**63, description="-1: a random one")
    temperature: _Number | None = Field(None, ge=0, le=2)
    top_k: TopK | None = Field(None, description="0 and -1: all tokens")
    top_p: TopP | None = Field(None, description="0: always the likeliest token")
    min_p: _Number | None = Field(None, ge=0, le=1)
    repeat_penalty: _Number | None = Field(None, ge=0, le=10, description="0 and 1: no penalty")
    presence_penalty: _Number | None = Field(None, ge=-2, le=2)
    frequency_penalty: _Number | None = Field(None, ge=-2, le=2)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    mirostat: Literal[0] | None = Field(None, description=_ONE)
    tfs_z: Literal[1] | None = Field(None, description=_ONE)
    typical_p: Literal[1] | None = Field(None, description=_ONE)
    mirostat_tau: _Number | None = Field(None, description="ignored: mirostat is off")
    mirostat_eta: _Number | None = Field(None, description="ignored: mirostat is off")
    repeat_last_n: int | None = Field(None, description="ignored: repeat_penalty counts the whole context and answer")
    penalize_newline: bool | None = Field(None, description="ignored: newlines count like other tokens")
    num_ctx: int | None = Field(None, description="ignored: a context of any length is read into the memory")
    num_keep: int | None = Field(None, description=_IGNORED)
    num_batch: int | None = Field(None, description=_IGNORED)
    num_gpu: int | None = Field(None, description=_IGNORED)
    main_gpu: int | None = Field(None, description=_IGNORED)
    num_thread: int | None = Field(None, description=_IGNORED)
    draft_num_predict: int | None = Field(None, description=_IGNORED)
    numa: bool | None = Field(None, description=_IGNORED)
    low_vram: bool | None = Field(None, description=_IGNORED)
    f16_kv: bool | None = Field(None, description=_IGNORED)
    logits_all: bool | None = Field(None, description=_IGNORED)
    vocab_only: bool | None = Field(None, description=_IGNORED)
    use_mmap: bool | None = Field(None, description=_IGNORED)
    use_mlock: bool | None = Field(None, description=_IGNORED)
    embedding_only: bool | None = Field(None, description=_IGNORED)


KeepAlive = Annotated[
    float | str | None,
    Field(None, description="ignored: EVERLONG_MODEL_IDLE_SECONDS decides when an unused model is unloaded"),
]


class _Request(Nullable, Wire):
    model: str = Field(min_length=1, max_length=256, description="name of the served model, with or without `:latest`")
    stream: bool = True
    options: OllamaOptions = Field(default_factory=OllamaOptions)
    format: Literal["", "json"] | dict[str, Any] = Field(
        "", description="json, or a JSON Schema that the answer follows"
    )
    keep_alive: KeepAlive
    truncate: bool | None = Field(None, description=_WHOLE)
    shift: bool | None = Field(None, description=_WHOLE)
    debug_render_only: Literal[False] = Field(False, alias="_debug_render_only", description=_ONE)
    think: bool | Literal["low", "medium", "high", "max"] | None = Field(
        None, description="ignored: the models do not think before they answer"
    )
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=MAX_TOP_LOGPROBS)
    documents: list[Annotated[str, Field(min_length=1, max_length=128)]] = Field(
        default_factory=list, max_length=MAX_MESSAGES, description="ids of documents; not a field of Ollama's API"
    )
    recall: Recall | Literal[False] = Field(
        default_factory=Recall, description="false: no passages; not a field of Ollama's API"
    )


class OllamaMessage(Nullable, Wire):
    """A message of a chat. Answers can be sent back unchanged."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    images: Images = None
    thinking: str | None = Field(None, description="ignored")
    tool_calls: list[OllamaToolCall] = Field(
        default_factory=list, max_length=MAX_TOOLS, description="the calls of an answer (role assistant)"
    )
    tool_name: str | None = Field(None, max_length=256, description="the function whose result this is (role tool)")
    tool_call_id: str | None = Field(None, max_length=128, description="the call whose result this is (role tool)")


class OllamaChat(_Request):
    """A chat whose last message is answered. Without messages, nothing is done: the model is loaded already."""

    messages: list[OllamaMessage] = Field(default_factory=list, max_length=MAX_MESSAGES)
    tools: list[OllamaTool] = Field(default_factory=list, max_length=MAX_TOOLS)


class OllamaGenerate(_Request):
    """A prompt to answer, in the model's chat format. Without a prompt, nothing is done: the model is loaded already."""

    prompt: str = ""
    system: str = ""
    images: Images = None
    raw: Literal[False] = Field(False, description="the model's chat format is always used")
    template: Literal[""] = Field("", description="the model's own template is always used")
    suffix: Literal[""] = Field("", description="text after the answer is not supported")
    context: Annotated[list[int], Field(max_length=0)] = Field(
        default_factory=list, description="send earlier messages to /api/chat"
    )


class OllamaAnswerMessage(Wire):
    """An answer, or a piece of it."""

    role: Literal["assistant"] = "assistant"
    content: str
    tool_calls: list[OllamaToolCall] | None = Field(None, description="complete calls; left out without calls")


class _Answer(Wire):
    """What the lines of an answer have in common. The counts and durations (in nanoseconds) are in the last one."""

    model: str
    created_at: str
    done: bool
    done_reason: Literal["stop", "length", "load"] | None = None
    logprobs: list[dict[str, Any]] | None = None
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = Field(
        None, description="tokens of the prompt, documents and earlier messages included"
    )
    prompt_eval_duration: int | None = Field(None, description="time to the first token")
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaChatAnswer(_Answer):
    """An answer of a chat, or a line of its stream."""

    message: OllamaAnswerMessage


class OllamaGenerated(_Answer):
    """An answer to a prompt, or a line of its stream."""

    response: str


class OllamaEmbed(Nullable, Wire):
    """Texts to embed. Without a text, nothing is done: the model is loaded already."""

    model: str = Field(min_length=1, max_length=256, description="name of the embedding model")
    input: Annotated[Texts | None, BeforeValidator(lambda given: None if given in ("", []) else given)] = None
    truncate: bool | None = Field(None, description="ignored: texts are read whole")
    dimensions: int | None = Field(None, ge=1, description="keep only the first components of each vector")
    options: OllamaOptions | None = Field(None, description="ignored")
    keep_alive: KeepAlive


class OllamaEmbedPrompt(Nullable, Wire):
    """A text to embed. The older form of `/api/embed`."""

    model: str = Field(min_length=1, max_length=256, description="name of the embedding model")
    prompt: str = ""
    options: OllamaOptions | None = Field(None, description="ignored")
    keep_alive: KeepAlive


class OllamaEmbedding(Wire):
    """The vector of a text."""

    embedding: list[float] = Field(description="empty for an empty text")


class OllamaEmbeddings(Wire):
    """A vector for each text."""

    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: Literal[0] = 0
    prompt_eval_count: int


class OllamaDetails(Wire):
    """What kind of model it is."""

    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str = Field(description="such as 1.5B; empty if it is not known")
    quantization_level: str = Field(description="of the file; empty if it is not known")


class OllamaModel(Wire):
    """A model. `digest`: its fingerprint; before it is first loaded, the SHA-256 of its name."""

    name: str
    model: str
    modified_at: str
    size: int = Field(description="bytes of its file; 0 if it is not known")
    digest: str
    details: OllamaDetails
    loaded: bool = True


class OllamaModels(Wire):
    """Models that answer questions, and the embedding model."""

    models: list[OllamaModel]


class OllamaShow(Nullable, Wire):
    """The model to describe."""

    model: str = Field("", max_length=256)
    name: str = Field("", max_length=256, description="older name of `model`")
    verbose: bool = Field(False, description="ignored")
    system: Literal[""] = Field("", description=_ONE)
    template: Literal[""] = Field("", description=_ONE)
    options: OllamaOptions | None = Field(None, description="ignored")


class OllamaDescription(Wire):
    """A model."""

    license: str
    modelfile: str = ""
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "tools", "embedding"]]
    modified_at: str


class OllamaVersion(Wire):
    """The version of Ollama whose API the server follows, and that of the server."""

    version: str
    everlong: str


class OllamaError(Wire):
    """An error."""

    error: str
