/** How a call becomes a request, and an answer a result or an error. */
import { APIConnectionError, StreamError, UnexpectedAnswerError, statusError } from "./errors.js";
import { delay, newKey, passing, pause } from "./patience.js";
import { serverSentEvents } from "./sse.js";

export interface Options {
  /** Where the server is. Default: in a browser where the page came from, elsewhere http://127.0.0.1:8080. */
  baseUrl?: string | undefined;
  /** Sent as `Authorization: Bearer`; a function is asked before every request. */
  apiKey?: string | (() => string | null | undefined) | undefined;
  /** How often a call is tried again. Default: 3. */
  retries?: number | undefined;
  /** Seconds for which `wait` and conversations bear with a server that is away. Default: 60. */
  patience?: number | undefined;
  /** Instead of the global ones. */
  fetch?: typeof fetch | undefined;
  WebSocket?: typeof WebSocket | undefined;
}

/** One request. */
export interface Call {
  method: "GET" | "POST" | "PATCH" | "DELETE";
  path: string;
  query?: Record<string, string | number | null | undefined>;
  json?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal | undefined;
  idempotencyKey?: string | undefined;
}

export type Exchange = (url: string, headers: Record<string, string>) => Promise<Response>;

export class Transport {
  readonly baseUrl: string;
  readonly patience: number;
  readonly #options: Options;
  readonly #retries: number;

  constructor(options: Options) {
    const here = typeof location === "object" && /^https?:/.test(location.origin) ? location.origin : "http://127.0.0.1:8080";
    this.baseUrl = (options.baseUrl ?? here).replace(/\/+$/, "");
    if (!/^https?:\/\//.test(this.baseUrl))
      throw new TypeError(`${this.baseUrl} is no server's address: it must begin with http:// or https://`);
    this.patience = options.patience ?? 60;
    this.#retries = options.retries ?? 3;
    this.#options = options;
  }

  get apiKey(): string | null {
    const { apiKey } = this.#options;
    return (typeof apiKey === "function" ? apiKey() : apiKey) || null;
  }

  /** The JSON that the server answers with. */
  async json<T>(call: Call): Promise<T> {
    return this.#tried(call, this.#fetched(call), (response) => this.parsed<T>(response));
  }

  /** A socket at `path`. Browsers let no header be set on one: a ticket stands for the key. */
  async socket(path: string, signal?: AbortSignal): Promise<WebSocket> {
    const Socket = this.#options.WebSocket ?? globalThis.WebSocket;
    if (!Socket)
      throw new TypeError("there is no WebSocket here (Node has one from version 22 on): pass one, such as the package ws has");
    const url = new URL(`ws${this.baseUrl.slice(4)}${path}`);
    if (this.apiKey) {
      const { ticket } = await this.json<{ ticket: string }>({ method: "POST", path: "/v1/tickets", signal });
      url.searchParams.set("ticket", ticket);
    }
    return new Socket(url);
  }

  /** The `data` of the events that the server answers with, parsed. An `error` event is thrown. */
  async *events<T extends { type: string }>(call: Call): AsyncGenerator<T> {
    const response = await this.#tried(call, this.#fetched(call), async (response) => response);
    if (!response.body || !(response.headers.get("content-type") ?? "").startsWith("text/event-stream"))
      throw new UnexpectedAnswerError(`${this.baseUrl} did not answer with an event stream`);
    try {
      for await (const data of serverSentEvents(response.body)) yield parsedEvent<T>(data);
    } catch (error) {
      throw call.signal?.aborted ? call.signal.reason : error;
    }
  }

  /** As `json`, for an upload: `exchange` does it, and can be called again if `again`. */
  async upload<T>(call: Call, exchange: Exchange, again: boolean): Promise<T> {
    return this.#tried(call, exchange, (response) => this.parsed<T>(response), again);
  }

  fetch(url: string, init: RequestInit): Promise<Response> {
    return (this.#options.fetch ?? globalThis.fetch)(url, init);
  }

  async parsed<T>(response: Response): Promise<T> {
    try {
      return (await response.json()) as T;
    } catch (error) {
      if (error instanceof SyntaxError)
        throw new UnexpectedAnswerError(`${this.baseUrl} answered with something that is not JSON: is it an everlong server?`);
      throw error;
    }
  }

  #fetched(call: Call): Exchange {
    return (url, headers) => {
      const body = call.json === undefined ? {} : { body: JSON.stringify(call.json) };
      if (call.json !== undefined) headers["Content-Type"] = "application/json";
      return this.fetch(url, { method: call.method, headers, signal: call.signal ?? null, ...body });
    };
  }

  /**
   * What `read` makes of the first answer that is a success. A refusal (429, 503) and a lost answer are tried again, after the time that the
   * server asks for: a POST has a key by which the server knows it again, so nothing is done twice.
   */
  async #tried<T>(call: Call, exchange: Exchange, read: (response: Response) => Promise<T>, again = true): Promise<T> {
    const named = call.method === "POST" ? { ...call.headers, "Idempotency-Key": call.idempotencyKey ?? newKey() } : call.headers;
    let lost = false;
    for (let attempt = 0; ; attempt++) {
      let failure: unknown;
      try {
        const response = await this.#once({ ...call, headers: named ?? {} }, exchange);
        if (response.ok) return await this.#whole(call, () => read(response));
        // Deleted by the try before, whose answer was lost.
        if (response.status === 404 && lost && call.method === "DELETE") return await read(Response.json({}));
        failure = statusError(response.status, response.headers.get("retry-after"), await this.#whole(call, () => response.text()));
      } catch (error) {
        if (!(error instanceof APIConnectionError)) throw error;
        failure = error;
      }
      lost ||= failure instanceof APIConnectionError;
      const seconds = delay(attempt, failure);
      if (attempt >= this.#retries || seconds === null || !again || !passing(failure)) throw failure;
      await pause(seconds, call.signal);
    }
  }

  async #once(call: Call, exchange: Exchange): Promise<Response> {
    const url = new URL(this.baseUrl + call.path);
    for (const [name, value] of Object.entries(call.query ?? {})) if (value != null) url.searchParams.set(name, String(value));
    const key = this.apiKey;
    const headers = { ...call.headers, ...(key ? { Authorization: `Bearer ${key}` } : {}) };
    return this.#whole(call, () => exchange(url.href, headers));
  }

  /** What `doing` gives; where the connection is lost meanwhile, an `APIConnectionError`. */
  async #whole<T>(call: Call, doing: () => Promise<T>): Promise<T> {
    try {
      return await doing();
    } catch (error) {
      if (call.signal?.aborted) throw call.signal.reason;
      if (error instanceof UnexpectedAnswerError) throw error;
      const cause = (error as { cause?: Error }).cause ?? (error as Error);
      throw new APIConnectionError(`no answer from ${this.baseUrl}: ${cause.message}`, { cause: error });
    }
  }
}

/** An event from its JSON. Throws `StreamError` for an `error` event and for what cannot be understood. */
export function parsedEvent<T extends { type: string }>(data: string): T {
  let event: { type?: unknown; error?: { message: string; code?: string; type?: string; param?: string | null; retry_after?: number | null } };
  try {
    event = JSON.parse(data);
  } catch {
    throw new StreamError(`an event that cannot be understood: ${data.slice(0, 200)}`, { code: "invalid_event" });
  }
  if (event.type === "error" && event.error) {
    const { message, retry_after: retryAfter, ...facts } = event.error;
    throw new StreamError(message, { ...facts, retryAfter: retryAfter ?? null });
  }
  return event as T;
}

/** `/v1/` and the parts, escaped. */
export function path(...parts: string[]): string {
  if (parts.some((part) => part === "" || part === "." || part === "..")) throw new TypeError("an id must not be empty");
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}
