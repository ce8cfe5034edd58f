/** Sends calls as HTTP requests, with retries, and turns responses into results or errors. */
import { APIConnectionError, APITimeoutError, StreamError, UnexpectedAnswerError, statusError } from "./errors.js";
import { isTransient, newIdempotencyKey, retryDelay, sleep } from "./retry.js";
import { serverSentEvents } from "./sse.js";

export interface Options {
  /** The server's address. Default: in a browser the origin of the page, elsewhere http://127.0.0.1:8080. */
  baseUrl?: string | undefined;
  /** Sent as `Authorization: Bearer`. A function is called before every request. */
  apiKey?: string | (() => string | null | undefined) | undefined;
  /** The maximum number of retries of a call. Default: 3. */
  retries?: number | undefined;
  /** Seconds for which `wait`, `follow` and conversations tolerate an unreachable server. Default: 60. */
  outageTimeout?: number | undefined;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch | undefined;
  /** Replaces the global `WebSocket`. */
  WebSocket?: typeof WebSocket | undefined;
}

/** One request. */
export interface Call {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, string | number | boolean | null | undefined>;
  json?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  idempotencyKey?: string | undefined;
}

/** Sends one request and returns its response. */
export type Exchange = (url: string, headers: Record<string, string>) => Promise<Response>;

export class Transport {
  readonly baseUrl: string;
  readonly outageTimeout: number;
  readonly #options: Options;
  readonly #retries: number;

  constructor(options: Options) {
    const here = typeof location === "object" && /^https?:/.test(location.origin) ? location.origin : "http://127.0.0.1:8080";
    this.baseUrl = (options.baseUrl ?? here).replace(/\/+$/, "");
    if (!/^https?:\/\//.test(this.baseUrl))
      throw new TypeError(`the server's address must start with http:// or https://, got ${this.baseUrl}`);
    this.outageTimeout = options.outageTimeout ?? 60;
    this.#retries = options.retries ?? 3;
    this.#options = options;
  }

  get apiKey(): string | null {
    const { apiKey } = this.#options;
    return (typeof apiKey === "function" ? apiKey() : apiKey) || null;
  }

  /** Sends the call and returns the JSON of the response. */
  async json<T>(call: Call): Promise<T> {
    return this.#withRetries(call, this.#fetchExchange(call), (response) => this.parseJson<T>(response));
  }

  /** Sends the call and returns the body of the response. */
  async blob(call: Call): Promise<Blob> {
    return this.#withRetries(call, this.#fetchExchange(call), (response) => response.blob());
  }

  /** Opens a WebSocket at `path`. Browsers cannot set its headers, so a ticket in the URL replaces the API key. */
  async socket(path: string, signal?: AbortSignal): Promise<WebSocket> {
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket;
    if (!Socket)
      throw new TypeError("WebSocket is not available (Node has it since version 22): pass an implementation as the option `WebSocket`, for example of the package ws");
    const url = new URL(`ws${this.baseUrl.slice(4)}${path}`);
    if (this.apiKey) {
      const { ticket } = await this.json<{ ticket: string }>({ method: "POST", path: "/v1/tickets", signal });
      url.searchParams.set("ticket", ticket);
    }
    return new Socket(url);
  }

  /** Sends the call and yields the parsed events of the response. Throws `StreamError` for an `error` event. */
  async *events<T extends { type: string }>(call: Call): AsyncGenerator<T> {
    const response = await this.#withRetries(call, this.#fetchExchange(call), async (response) => response);
    if (!response.body || !(response.headers.get("content-type") ?? "").startsWith("text/event-stream"))
      throw new UnexpectedAnswerError(`the response of ${this.baseUrl} is not an event stream`);
    try {
      for await (const data of serverSentEvents(response.body)) yield parseEvent<T>(data);
    } catch (error) {
      throw call.signal?.aborted ? call.signal.reason : error;
    }
  }

  /** As `json`, but sends the request with `exchange`. It is retried only if the upload is `repeatable`. */
  async upload<T>(call: Call, exchange: Exchange, repeatable: boolean): Promise<T> {
    return this.#withRetries(call, exchange, (response) => this.parseJson<T>(response), repeatable);
  }

  fetch(url: string, init: RequestInit): Promise<Response> {
    return (this.#options.fetch ?? globalThis.fetch)(url, init);
  }

  async parseJson<T>(response: Response): Promise<T> {
    try {
      return (await response.json()) as T;
    } catch (error) {
      if (error instanceof SyntaxError)
        throw new UnexpectedAnswerError(`the response of ${this.baseUrl} is not JSON; check that it is an everlong server`);
      throw error;
    }
  }

  #fetchExchange(call: Call): Exchange {
    return (url, headers) => {
      const body = call.json === undefined ? {} : { body: JSON.stringify(call.json) };
      if (call.json !== undefined) headers["Content-Type"] = "application/json";
      return this.fetch(url, { method: call.method, headers, signal: call.signal ?? null, ...body });
    };
  }

  /**
   * Returns `read` of the first successful response. Retries a refusal (429, 503) and a lost response, after the delay that
   * the server asks for. Each POST has an idempotency key, so that the server does nothing twice.
   */
  async #withRetries<T>(call: Call, exchange: Exchange, read: (response: Response) => Promise<T>, repeatable = true): Promise<T> {
    const named = call.method === "POST" ? { ...call.headers, "Idempotency-Key": call.idempotencyKey ?? newIdempotencyKey() } : call.headers;
    let lost = false;
    for (let attempt = 0; ; attempt++) {
      let failure: unknown;
      try {
        const response = await this.#tryOnce({ ...call, headers: named ?? {} }, exchange);
        if (response.ok) return await this.#mapErrors(call, () => read(response));
        // An earlier try, whose response was lost, has deleted it.
        if (response.status === 404 && lost && call.method === "DELETE") return await read(Response.json({}));
        failure = statusError(response.status, response.headers.get("retry-after"), await this.#mapErrors(call, () => response.text()));
      } catch (error) {
        if (!(error instanceof APIConnectionError)) throw error;
        failure = error;
      }
      lost ||= failure instanceof APIConnectionError;
      const seconds = retryDelay(attempt, failure);
      if (attempt >= this.#retries || seconds === null || !repeatable || !isTransient(failure)) throw failure;
      await sleep(seconds, call.signal);
    }
  }

  async #tryOnce(call: Call, exchange: Exchange): Promise<Response> {
    const url = new URL(this.baseUrl + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) if (value != null) url.searchParams.set(name, String(value));
    const key = this.apiKey;
    const headers = { ...call.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    return this.#mapErrors(call, () => exchange(url.href, headers));
  }

  /** Runs `work`. Throws `APIConnectionError` if the connection is lost meanwhile, and `APITimeoutError` if `fetch` gives up. */
  async #mapErrors<T>(call: Call, work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } catch (error) {
      if (call.signal?.aborted) throw call.signal.reason;
      if (error instanceof UnexpectedAnswerError) throw error;
      const cause: Error & { code?: unknown } = (error as { cause?: Error }).cause ?? (error as Error);
      if (cause.code === "UND_ERR_HEADERS_TIMEOUT" || cause.code === "UND_ERR_BODY_TIMEOUT")
        throw new APITimeoutError(`no response from ${this.baseUrl} in the time that fetch waits for one (${cause.message}): stream the answer, or pass a \`fetch\` that waits longer`, { cause: error });
      throw new APIConnectionError(`no response from ${this.baseUrl}: ${cause.message}`, { cause: error });
    }
  }
}

/** Parses an event. Throws `StreamError` for an `error` event and for invalid JSON. */
export function parseEvent<T extends { type: string }>(data: string): T {
  let event: { type?: unknown; error?: { message: string; code?: string; type?: string; param?: string | null; retry_after?: number | null } };
  try {
    event = JSON.parse(data);
  } catch {
    throw new StreamError(`the server sent an invalid event: ${data.slice(0, 200)}`, { code: "invalid_event" });
  }
  if (event.type === "error" && event.error) {
    const { message, retry_after: retryAfter, ...fields } = event.error;
    throw new StreamError(message, { ...fields, retryAfter: retryAfter ?? null });
  }
  return event as T;
}

/** Returns `/v1/` and the escaped parts. Throws `TypeError` for an empty part, which would name another resource. */
export function path(...parts: string[]): string {
  if (parts.some((part) => part === "" || part === "." || part === "..")) throw new TypeError("an id must not be empty");
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}
