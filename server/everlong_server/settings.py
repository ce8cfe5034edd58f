"""`Settings`: every setting of the server, read from `EVERLONG_*` variables and the flags of `everlong serve`.

No other module reads the environment.
"""

from __future__ import annotations

import difflib
import os
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from everlong_server.engine.documents.formats.languages import Language
from everlong_server.hosts import authority, is_loopback, is_private, normalised_authority, normalised_host
from everlong_server.store.redis.connection import Address

PREFIX = "EVERLONG_"
_PARSE_ERROR = "error parsing CLI: "
# Read by the client's command line, not by the server.
_FOREIGN = {"EVERLONG_URL", "EVERLONG_API_KEY", "EVERLONG_DATA"}

# The server encodes one text at a time, so the tokenizer's threads gain nothing and print a warning at every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

GiB = 1 << 30
MiB = 1 << 20


def _home(variable: str, *default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home().joinpath(*default)) / "everlong"


class Settings(BaseSettings):
    """Every setting of the server. `max_streams` is the flag `--max-streams` and the variable `EVERLONG_MAX_STREAMS`.

    Unknown flags and variables are errors.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_prog_name="everlong serve",
        cli_implicit_flags=True,
        cli_avoid_json=True,
        cli_exit_on_error=False,
        validate_default=True,
    )

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: int = Field(8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    auth: Literal["keys", "off"] | None = Field(
        None,
        description="Whether requests need an API key: `keys` always, `off` never (anyone who reaches the server can read and delete everything); unset: `off` on a loopback address, else `keys`.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description='Host names accepted in the `Host` header when no API key is required, as a JSON list such as ["books.example.org"]; the server\'s addresses, localhost and, off loopback, names without a dot and under .internal or .local are always accepted.',
    )
    admin_key_file: Path | None = Field(
        None,
        description="File with an API key to create at start, for tenant `default` with all scopes; `everlong keys secret` prints a new one.",
    )
    metrics_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="Separate port for /metrics, /livez and /readyz; if set, /metrics is served only there.",
    )
    data_dir: Path = Field(
        default_factory=lambda: _home("XDG_DATA_HOME", ".local", "share"),
        description="Folder for uploaded documents and the embedded Redis.",
    )
    models_dir: Path = Field(
        default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models",
        description="Folder for downloaded and converted models.",
    )
    model: str | None = Field(
        None,
        description="Model to serve: a name that `everlong models list` shows, a folder with everlong.json, a backbone (Hugging Face folder, .gguf file or hub name), or BACKBONE+ADAPTER with a LoRA adapter; unset: a known model that suits the machine, or smollm2-135m-instruct if `memory` is set to another one than window or compact.",
    )
    models: tuple[str, ...] = Field(
        (), description="Further models that requests can name, as a JSON list; --models may also be repeated."
    )
    models_memory: int | None = Field(
        None, ge=1, description="Estimated bytes of memory that all loaded models may take; unset: the free memory."
    )
    model_idle_seconds: float = Field(
        300.0, ge=0, description="Time in seconds after which a model of `models` that nothing uses is unloaded."
    )
    memory: str | None = Field(
        None,
        description="Memory around a plain backbone: window (the default), rmt, …; compact and window also replace each other in trained models.",
    )
    memory_options: dict[str, Any] = Field(
        default_factory=dict, description='Fields of the memory\'s configuration, as JSON: {"segment_length": 512}.'
    )
    device: str = Field(
        "auto", description="Device to run the model on: cpu, cuda, cuda:1, …; auto takes a GPU if there is one."
    )
    tensor_parallel_size: int = Field(
        1, ge=1, le=64, description="Number of GPUs of this machine over which one model is spread."
    )
    threads: int = Field(0, ge=0, le=1024, description="CPU threads for the model; 0 leaves the number to PyTorch.")
    quantize: bool = Field(
        True,
        description="On a CPU, generate with 4-bit weights if the model was stored in 4 bits, else with 8-bit weights; activations, keys and values have 16 bits.",
    )
    gpu_quantize: Literal["int8", "fp8", "int4"] | None = Field(
        None,
        description="On a GPU, store the weights of linear layers in this format, with torchao (the extra gpu-quantize); unset: in bfloat16, or as the checkpoint has them.",
    )
    bfloat16: bool | None = Field(
        None,
        description="Round the activations of prefill, which is faster: to bfloat16 on a CPU with AMX or AVX512-BF16; with a GGUF file, to 8 bits on a CPU with AVX-512 VNNI but no AMX (models at least 768 wide); unset: only with a memory that has no weights, such as window or compact.",
    )

    secrets_dir: Path | None = Field(
        None,
        description="Folder of files that hold settings, each named after its variable, such as everlong_redis_url.",
    )
    redis_url: str | None = Field(
        None,
        description="URL of Redis: redis://, rediss://, unix://, redis+sentinel://HOST:PORT,…/SERVICE or redis+cluster://HOST:PORT,…; unset: start an embedded Redis.",
    )
    redis_copies: int | None = Field(
        None,
        ge=0,
        le=16,
        description="Redis replicas that must have a write before it is acknowledged; unset: 1 with Sentinel or a cluster, else 0.",
    )
    blob_url: str | None = Field(
        None, description="fsspec URL of the store for uploaded documents; unset: a folder in data_dir."
    )

    encryption_key_file: Path | None = Field(
        None,
        description="File of keys that encrypt messages and documents at rest, one `ID HEX` a line; the first key encrypts, every key decrypts; unset: no encryption.",
    )
    private_dir: Path | None = Field(
        None,
        description="Folder for decrypted working files (passage indexes, files being converted) while the server runs; unset: /dev/shm if it exists, else the system's temporary folder.",
    )

    max_document_bytes: int = Field(4 * GiB, ge=1, description="Maximum size of a document, in bytes.")
    ocr_models: Path | None = Field(
        None, description="Folder with RapidOCR's recognition models of languages that its wheel does not recognise."
    )
    ocr_language: str = Field(
        "any",
        description="Language of the text in pictures: `any` (all that the wheel's model recognises), `latin`, `greek`, `chinese` or `japanese`, which allow the letters of these scripts only; or, with its model in `ocr_models`, `cyrillic`, `devanagari`, `eslav`, `korean`, `ta`, `te` or `th`.",
    )
    fetch_hosts: tuple[str, ...] = Field(
        (),
        description='Hosts (with their ports) that documents may be fetched from, as a JSON list such as ["www.example.org"]; empty: fetching is off.',
    )
    max_body_bytes: int = Field(MiB, ge=1024, description="Maximum size of a JSON body or WebSocket frame, in bytes.")
    max_message_chars: int = Field(200_000, ge=1, description="Maximum length of a message, in characters.")
    recall_passages: int = Field(
        96, ge=0, le=96, description="Maximum number of passages found for a question; 0 turns the search off."
    )
    recall_tokens: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens of these passages that are put before the question; default 800 for instruct models, else 1,000. 256 tokens of the model's context (half of a context under 512) stay free for the question and answer.",
    )
    embeddings: str = Field(
        "auto",
        description="Whether documents are also searched by meaning: auto, with the packaged all-MiniLM-L6-v2 (English) if it is installed; off; or a folder of another model in sentence-transformers' format.",
    )
    max_batch_bytes: int = Field(200 * MiB, ge=1, description="Maximum size of a batch's input file, in bytes.")
    max_batch_lines: int = Field(50_000, ge=1, description="Maximum number of requests in a batch.")
    max_session_documents: int = Field(64, ge=1, description="Maximum number of documents in one session.")
    max_streams: int | None = Field(
        None, ge=1, le=4096, description="Maximum number of answers generated at once; unset: 8 on a CPU, else 64."
    )
    max_queued: int = Field(
        64, ge=0, description="Maximum number of answers waiting in the queue; further requests get 429."
    )
    max_readers: int | None = Field(
        None, ge=1, le=256, description="Maximum number of documents read at once; unset: 2 on a CPU, else 64."
    )
    reading_rows: int | None = Field(
        None,
        ge=1,
        le=256,
        description="Maximum number of documents whose segments are prefilled in one batch; unset: 1 on a CPU, where larger batches are no faster, else 64.",
    )
    cuda_graphs: bool = Field(
        True,
        description="On a GPU, run prefill and decode with CUDA graphs; operations that cannot be captured are logged and run without.",
    )
    draft_tokens: int | None = Field(
        None,
        ge=0,
        le=15,
        description="Maximum number of an answer's next tokens that the server guesses from prompt and answer, and verifies in one decode step (prompt lookup): 1, 3, 7 or 15; others count as the next smaller one; 0: none; unset: 7.",
    )
    tenant_requests_per_minute: int | None = Field(
        None, ge=1, description="Maximum number of requests per tenant and minute; unset: no limit."
    )
    tenant_streams: int | None = Field(
        None,
        ge=1,
        description="Maximum number of answers, searches, rankings and requests for embeddings or a session's memory at once per tenant; unset: no limit.",
    )
    tenant_queued: int | None = Field(
        None,
        ge=1,
        description="Maximum number of documents per tenant and model that are queued or being read; unset: no limit.",
    )
    tenant_bytes: int | None = Field(
        None,
        ge=1,
        description="Maximum number of bytes stored per tenant in documents, multipart uploads, responses, vector stores, batches and their files; unset: no limit.",
    )
    tenant_sessions: int | None = Field(
        None, ge=1, description="Maximum number of sessions per tenant; unset: no limit."
    )
    tenant_tokens_per_day: int | None = Field(
        None,
        ge=1,
        description="Maximum number of tokens read, generated and embedded per tenant and day (UTC); unset: no limit.",
    )
    reading_share: float = Field(
        0.3, gt=0, lt=1, description="Share of the device's time that documents get while answers are being generated."
    )
    max_decode_stall_ms: float = Field(
        100.0,
        ge=0,
        description="Longest time, in milliseconds, that prefill holds up running answers: after it, decoding continues before the next layer, or after the segment if the backbone cannot be run layer by layer.",
    )
    turn_seconds: float = Field(
        10.0,
        ge=0,
        description="Time in seconds after which a document or batch yields to others that wait and goes to the end of the queue.",
    )
    checkpoint_seconds: float = Field(
        1.0, ge=0, description="Maximum time in seconds between checkpoints of a document that is being read."
    )
    chat_seconds: float = Field(
        3600.0,
        gt=0,
        le=1e9,
        description="Time in seconds that a chat completion's memory is kept; after it, the chat's messages are read again.",
    )
    idempotency_seconds: float = Field(
        86400.0,
        gt=0,
        le=1e9,
        description="Time in seconds that the result of a request with an Idempotency-Key is kept.",
    )
    upload_seconds: float = Field(
        3600.0, gt=0, le=1e9, description="Time in seconds after which an incomplete multipart upload is deleted."
    )
    response_seconds: float = Field(
        30 * 86400.0,
        gt=0,
        le=1e9,
        description="Time in seconds that a stored response is kept after it was last used as previous_response_id.",
    )
    batch_seconds: float = Field(
        30 * 86400.0,
        ge=2 * 86400.0,
        le=1e9,
        description="Time in seconds that a batch, its input file and its output files are kept after their creation.",
    )
    lease_seconds: float = Field(
        15.0, gt=0, description="Time in seconds after which a writer that does not renew its lease loses its session."
    )
    keepalive_seconds: float = Field(
        15.0,
        gt=0,
        description="Interval in seconds of keep-alive comments on event streams and of WebSocket pings; a request body that makes no progress for four intervals is rejected.",
    )
    drain_seconds: float = Field(
        30.0, ge=0, description="Time in seconds that running answers have to finish after SIGTERM."
    )
    websocket_idle_seconds: float = Field(
        3600.0, gt=0, description="Time in seconds after which a WebSocket without messages is closed."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Format of the log: text, or json with one object a line that includes the request id."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="Least severe level to log.")

    @field_validator("fetch_hosts", "allowed_hosts")
    @classmethod
    def _normalise_hosts(cls, hosts: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        """Return the hosts as HTTP clients send them: in lower case and ASCII. Those in `allowed_hosts` have no port."""
        return tuple(map(normalised_authority if info.field_name == "fetch_hosts" else normalised_host, hosts))

    @field_validator("ocr_language")
    @classmethod
    def _check_language(cls, name: str, info: ValidationInfo) -> str:
        return Language(name, info.data.get("ocr_models")).name

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: str | None) -> str | None:
        if url is not None:
            Address.of(url)
        return url

    @property
    def asks_for_keys(self) -> bool:
        """True if requests need an API key."""
        return self.auth == "keys" or (self.auth is None and not self.is_local)

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        return is_loopback(self.host)

    def reached_at(self, port: int) -> str:
        """Return the `host:port` part of the URL that reaches this server from this machine, if it listens on `port`."""
        return authority({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), port)  # noqa: S104 - compared, not bound

    def accepts_host(self, name: str) -> bool:
        """True if `name` is a host name of this server. Protects against DNS rebinding, where a name that somebody else
        registered resolves to this server."""
        name = name.removesuffix(".").lower()
        if name in self.allowed_hosts or is_loopback(name):
            return True
        return not self.is_local and is_private(name)

    @cached_property
    def language(self) -> Language:
        """Language of the text in pictures. The file of its model is looked for once, not for each request."""
        return Language(self.ocr_language, self.ocr_models)

    @property
    def blobs(self) -> str:
        """fsspec URL of the store for uploaded documents."""
        return self.blob_url or f"file://{self.data_dir.expanduser().absolute() / 'documents'}"


def traces_wanted() -> bool:
    """True if OpenTelemetry's standard variables name an exporter for traces. The SDK reads the other variables."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return not off and (
        os.environ.get("OTEL_TRACES_EXPORTER") == "otlp" or any(os.environ.get(name) for name in endpoints)
    )


class SettingsError(Exception):
    """A setting has an invalid value. The message gives the flag, the variable, the value and the limit."""


def load_settings(args: list[str] | None = None, **overrides: Any) -> Settings:
    """Read the settings. Command-line `args` win over the environment, which wins over files in `secrets_dir`.

    Raises `SettingsError` for an unknown or invalid setting.
    """
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields} | _FOREIGN
    for variable in os.environ:
        if variable.upper().startswith(PREFIX) and variable.upper() not in known:
            near = difflib.get_close_matches(variable.upper(), known, 1)
            raise SettingsError(f"unknown variable {variable}" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        settings = Settings(_cli_parse_args=args, **overrides)
        if settings.secrets_dir is None:
            return settings
        folder = settings.secrets_dir.expanduser()
        if not folder.is_dir():
            raise SettingsError(f"--secrets-dir ({PREFIX}SECRETS_DIR)={str(folder)!r}: the folder does not exist")
        return Settings(_cli_parse_args=args, _secrets_dir=folder, **overrides)
    except SourceError as error:  # an unknown flag, or a variable that should hold JSON
        if str(error).startswith(_PARSE_ERROR):
            message = str(error).removeprefix(_PARSE_ERROR)
            raise SettingsError(f"{message}{_similar_flags(message) or '; see'} `everlong serve --help`") from error
        name = next(name for name in Settings.model_fields if f'"{name}"' in str(error))  # the source quotes it
        flag, variable = f"--{name.replace('_', '-')}", f"{PREFIX}{name}".upper()
        example = '{"segment_length": 512}' if name == "memory_options" else '["one", "two"]'
        raise SettingsError(f"{flag} ({variable}): must be JSON, such as {example}: {error.__cause__}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "?"
        flag, variable = f"--{name.replace('_', '-')}", f"{PREFIX}{name}".upper()
        # The URL is left out, as it may contain a password.
        value = f"={first['input']!r}" if name in Settings.model_fields and name != "redis_url" else ""
        raise SettingsError(f"{flag} ({variable}){value}: {first['msg'].removeprefix('Value error, ')}") from error


def _similar_flags(message: str) -> str:
    """Return a question that names the flags nearest to those in an error message; an empty string if none is near."""
    flags = [f"--{name.replace('_', '-')}" for name in Settings.model_fields]
    given = [word.partition("=")[0] for word in message.split() if word.startswith("--")]
    near = [match for flag in given for match in difflib.get_close_matches(flag, flags, 1)]
    return f". Did you mean {' and '.join(near)}? See" if near else ""
