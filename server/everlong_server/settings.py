"""`Settings`: the only reader of the environment (`EVERLONG_*`), mirrored as flags of `everlong serve`."""

from __future__ import annotations

import difflib
import ipaddress
import os
from pathlib import Path
from typing import Any, Literal

import httpx
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as SourceError

from everlong_server.store.redis.connection import Address

PREFIX = "EVERLONG_"
# Read by the client's command line, not by the server.
_FOREIGN = {"EVERLONG_URL", "EVERLONG_API_KEY", "EVERLONG_DATA"}

# Texts are encoded one at a time: the tokenizer's own threads would do nothing for them, and warn at every fork.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

GiB = 1 << 30
MiB = 1 << 20


def _home(variable: str, *default: str) -> Path:
    return Path(os.environ.get(variable) or Path.home().joinpath(*default)) / "everlong"


class Settings(BaseSettings):
    """Every setting of the server. Flags are the names with dashes; variables are the names in capitals behind
    `EVERLONG_`. Unknown ones are errors."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, frozen=True, extra="forbid", cli_kebab_case=True, cli_prog_name="everlong serve",
        cli_implicit_flags=True, cli_avoid_json=True, validate_default=True,
    )  # fmt: skip

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(8080, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    auth: Literal["keys", "off"] | None = Field(
        None,
        description="keys: every request needs an API key; off: whoever reaches the server may read and delete "
        "everything; unset: off on a loopback address, keys elsewhere",
    )
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description='names that this server is called by where it asks for no keys, as JSON: ["books.example.org"]; always: its addresses, '
        "localhost, and, unless it listens on a loopback address, names that nobody can register (without a dot; .internal, .local)",
    )
    admin_key_file: Path | None = Field(
        None,
        description="file with an API key that is made at the start, unless it is there: of the tenant default, with all scopes; "
        "`everlong keys secret` prints one",
    )
    metrics_port: int | None = Field(
        None, ge=1, le=65535, description="a port of their own for /metrics, /livez and /readyz; /metrics is only there"
    )
    data_dir: Path = Field(
        default_factory=lambda: _home("XDG_DATA_HOME", ".local", "share"),
        description="folder for uploads and the embedded Redis",
    )
    models_dir: Path = Field(
        default_factory=lambda: _home("XDG_CACHE_HOME", ".cache") / "models",
        description="folder for pulled and converted models",
    )
    model: str | None = Field(
        None,
        description="a folder with everlong.json, or a backbone: a known name, a Hugging Face folder, a .gguf file, a hub name; "
        "unset: smollm2-135m-reader, or with a memory of your choice smollm2-135m-instruct",
    )
    memory: str | None = Field(None, description="memory around a plain backbone: window (default), rmt, …")
    memory_options: dict[str, Any] = Field(
        default_factory=dict, description='fields of the memory\'s config, as JSON: {"segment_length": 512}'
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, …; auto takes a GPU if there is one")
    threads: int = Field(0, ge=0, le=1024, description="CPU threads for the model; 0 leaves it to PyTorch")
    quantize: bool = Field(
        True,
        description="on a CPU, generate with weights of 4 bits if the model's were stored so, of 8 if not, and with activations, keys and values of 16",
    )
    bfloat16: bool | None = Field(
        None,
        description="on a CPU that has instructions for it (AVX-512, AMX), encode prompts and read texts in bfloat16, as on a GPU; "
        "unset: with window, which keeps nothing that is computed, and not with other memories",
    )

    secrets_dir: Path | None = Field(
        None, description="folder of files with values, each named after its variable, such as everlong_redis_url"
    )
    redis_url: str | None = Field(
        None,
        description="redis://, rediss:// or unix://; redis+sentinel://HOST:PORT,…/SERVICE; redis+cluster://HOST:PORT,…; "
        "unset starts an embedded Redis",
    )
    redis_copies: int | None = Field(
        None,
        ge=0,
        le=16,
        description="replicas of Redis that have a write before it is acknowledged; unset: 1 with Sentinel or a cluster, else 0",
    )
    blob_url: str | None = Field(None, description="fsspec URL for uploads; unset is a folder in data_dir")

    encryption_key_file: Path | None = Field(
        None,
        description="file of keys that what users say and upload is encrypted with before it is stored, a line each: `ID HEX`; "
        "the first one encrypts, each decrypts; unset: nothing is encrypted",
    )
    private_dir: Path | None = Field(
        None,
        description="folder for what must be decrypted to be used (indexes of passages, files being converted), while the server "
        "runs; unset: in memory (/dev/shm) where there is such a folder, else the system's for temporary files",
    )

    max_document_bytes: int = Field(4 * GiB, ge=1, description="largest upload")
    fetch_hosts: tuple[str, ...] = Field(
        (),
        description='hosts, with their ports, that documents may be fetched from, as JSON: ["www.example.org"]; none',
    )
    max_body_bytes: int = Field(MiB, ge=1024, description="largest JSON body or WebSocket frame")
    max_message_chars: int = Field(200_000, ge=1, description="longest message")
    recall_passages: int = Field(
        16, ge=0, le=32, description="passages of the text that are put before a question; 0 puts none"
    )
    recall_tokens: int = Field(
        1000,
        ge=1,
        description="what these may take together; of what a model sees, 256 tokens (or half, if it sees fewer than 512) stay for question and answer",
    )
    max_session_documents: int = Field(64, ge=1, description="documents in one session")
    max_streams: int | None = Field(
        None, ge=1, le=4096, description="answers generated at once; unset: 8 on a CPU, else 64"
    )
    max_queued: int = Field(64, ge=0, description="answers that wait for their turn; more get 429")
    max_readers: int | None = Field(
        None, ge=1, le=256, description="documents read at once; unset: 2 on a CPU, else 64"
    )
    reading_rows: int | None = Field(
        None,
        ge=1,
        le=256,
        description="of these, so many have their next segments read in one pass; unset: 1 on a CPU, where more are no faster, else 64",
    )
    cuda_graphs: bool = Field(
        True,
        description="on a GPU, generate and read by CUDA graphs; what cannot be recorded as one is in the log, and done without",
    )
    tenant_requests_per_minute: int | None = Field(
        None, ge=1, description="requests that a tenant may make; unset: any"
    )
    tenant_streams: int | None = Field(None, ge=1, description="answers at once for a tenant; unset: any")
    tenant_queued: int | None = Field(
        None, ge=1, description="documents of a tenant that are being read or wait for it; unset: any"
    )
    tenant_bytes: int | None = Field(
        None,
        ge=1,
        description="bytes that a tenant may store, in documents, uploads in parts and responses; unset: any",
    )
    tenant_sessions: int | None = Field(None, ge=1, description="sessions that a tenant may have; unset: any")
    tenant_tokens_per_day: int | None = Field(
        None, ge=1, description="tokens that may be read and generated for a tenant in a day (UTC); unset: any"
    )
    reading_share: float = Field(
        0.3, gt=0, lt=1, description="share of the device's time that documents get while answers are generated"
    )
    max_decode_stall_ms: float = Field(
        100.0,
        ge=0,
        description="answers that have waited so long go on before the next layer of what is being read, not after its "
        "segment (after it, where a backbone cannot be driven layer by layer)",
    )
    turn_seconds: float = Field(
        10.0, ge=0, description="after so long a document lets others be read that wait for it, and goes on behind them"
    )
    checkpoint_seconds: float = Field(1.0, ge=0, description="a document's state is saved at least this often")
    chat_seconds: float = Field(
        3600.0,
        gt=0,
        le=1e9,
        description="a chat completion's memory is kept so long; later its messages are read again",
    )
    idempotency_seconds: float = Field(
        86400.0, gt=0, le=1e9, description="answers to requests with an Idempotency-Key are kept so long"
    )
    upload_seconds: float = Field(
        3600.0, gt=0, le=1e9, description="an upload in parts that is not completed by then is thrown away"
    )
    response_seconds: float = Field(
        30 * 86400.0,
        gt=0,
        le=1e9,
        description="a response that may be stored is kept so long after its last use as previous_response_id",
    )
    lease_seconds: float = Field(15.0, gt=0, description="a writer that is silent for so long loses its session")
    keepalive_seconds: float = Field(
        15.0, gt=0,
        description="comment on idle event streams, ping on WebSockets; a body that stands still for four times as long is given up",
    )  # fmt: skip
    drain_seconds: float = Field(30.0, ge=0, description="time that running answers get to finish at SIGTERM")
    websocket_idle_seconds: float = Field(3600.0, gt=0, description="a WebSocket without messages is closed after this")
    log_format: Literal["text", "json"] = Field(
        "text", description="json: a line of JSON each, with the id of the request that it is about"
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="what is logged")

    @field_validator("fetch_hosts")
    @classmethod
    def _as_asked(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        """As they stand in a request: in lower case, in ASCII."""
        return tuple(_authority(host) for host in hosts)

    @field_validator("redis_url")
    @classmethod
    def _understood(cls, url: str | None) -> str | None:
        if url is not None:
            Address.of(url)
        return url

    @property
    def asks_for_keys(self) -> bool:
        """Whether requests need an API key."""
        return self.auth == "keys" or (self.auth is None and not self.is_local)

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)

    def reached_at(self, port: int) -> str:
        """The host and port by which this machine reaches a server that listens at `port`, as a URL has them."""
        return authority({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host), port)  # noqa: S104 - compared, not bound

    def is_called(self, name: str) -> bool:
        """Whether this server may be meant by `name`, that of a URL. Not by one that somebody else's page may have had point here."""
        name = name.removesuffix(".").lower()
        if name in self.allowed_hosts or is_loopback(name):
            return True
        return not self.is_local and ("." not in name or name.endswith(_NOBODYS) or _is_address(name))

    @property
    def blobs(self) -> str:
        """Where uploads are kept, as an fsspec URL."""
        return self.blob_url or f"file://{self.data_dir.expanduser().absolute() / 'documents'}"


def _authority(host: str) -> str:
    try:
        url = httpx.URL(f"//{host}")
        alone = url.host != "" and (url.path, url.query, url.fragment, url.userinfo) == ("/", b"", "", b"")
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ValueError(f"{host!r} is no host: {error}") from None
    if not alone:
        raise ValueError(f"{host!r} is not a host, or a host and its port")
    return url.netloc.decode()


def traces_wanted() -> bool:
    """Whether the standard variables of OpenTelemetry say where traces go. What else they say, its SDK reads."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true" or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    places = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return not off and (
        os.environ.get("OTEL_TRACES_EXPORTER") == "otlp" or any(os.environ.get(name) for name in places)
    )


# No registry gives out names below these: RFC 6762, ICANN's resolution 2024.07.29.06.
_NOBODYS = (".internal", ".local")


def authority(host: str, port: int) -> str:
    """Both as a URL has them."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own, for itself."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:  # a name, which may be anybody's
        return False
    return True


class SettingsError(Exception):
    """A setting that cannot be used: names the flag, the variable, the value and the limit."""


def load_settings(args: list[str] | None = None, **overrides: Any) -> Settings:
    """Settings from command line `args`, if given, the environment, and files in `secrets_dir`, in that order.

    Raises `SettingsError`.
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
            raise SettingsError(f"--secrets-dir ({PREFIX}SECRETS_DIR)={str(folder)!r}: there is no such folder")
        return Settings(_cli_parse_args=args, _secrets_dir=folder, **overrides)
    except SourceError as error:  # a variable that should be JSON and is not
        raise SettingsError(f"{error}: {error.__cause__}") from error
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "?"
        flag, variable = f"--{name.replace('_', '-')}", f"{PREFIX}{name}".upper()
        # A URL may hold a password, and is not shown.
        value = f"={first['input']!r}" if name in Settings.model_fields and name != "redis_url" else ""
        raise SettingsError(f"{flag} ({variable}){value}: {first['msg']}") from error
