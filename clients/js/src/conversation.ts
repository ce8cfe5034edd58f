/** `Conversation`: a session's WebSocket, which connects on first use and reconnects after a lost connection. */
import { APIConnectionError, StreamError } from "./errors.js";
import { isTransient, retryDelay, sleep } from "./retry.js";
import { type Transport, parseEvent, path } from "./transport.js";
import type { CallOptions, Message, ResponseEvent, Sampling, Session } from "./types.js";

/** The calls that a conversation needs to find out what the session has. `Sessions` implements it. */
export interface SessionReader {
  get(id: string, options: CallOptions): Promise<Session>;
  messages(id: string, options: CallOptions): Promise<Message[]>;
  cancel(id: string, options: CallOptions): Promise<Session>;
}

/**
 * Carries one answer at a time. If the connection is lost during an answer, the conversation reconnects for up to
 * `outageTimeout` seconds. If the answer was completed meanwhile, or with `on_disconnect` "finish" once it is complete, it is fetched;
 * else the message is sent again, because an incomplete answer leaves the session unchanged. The new answer starts with another `response.created`: discard the events
 * before it.
 */
export class Conversation {
  readonly session: string;
  /** Called with the error when the connection is lost, and with null when it is restored. */
  onlost: ((error: Error | null) => void) | null = null;
  readonly #transport: Transport;
  readonly #sessions: SessionReader;
  #connection: Connection | null = null;
  #answering = false;
  /** Whether the current message was sent over the connection. */
  #sent = false;
  /** Whether the current answer was cancelled, possibly before its message was sent. */
  #cancelled = false;
  /** Whether `close` was called during the current answer. */
  #closed = false;
  /** Whether the last answer was abandoned: the session may be busy until the server has cancelled it. */
  #abandoned = false;

  constructor(transport: Transport, session: string, sessions: SessionReader) {
    this.#transport = transport;
    this.session = session;
    this.#sessions = sessions;
  }

  /**
   * Sends a message and yields the answer's events; the last is `response.completed`. Leaving the loop early, or aborting,
   * discards the message and the answer, unless `on_disconnect` is "finish". `cancel` ends the answer and keeps the text generated so far.
   */
  async *send(content: string, sampling: Sampling = {}, { signal }: CallOptions = {}): AsyncGenerator<ResponseEvent> {
    if (this.#answering) throw new StreamError("this conversation is already receiving an answer; wait for its end or cancel it", { code: "session_busy" });
    [this.#answering, this.#cancelled, this.#closed] = [true, false, false];
    let messagesBefore: number | null = null;
    const continued = sampling.continue_answer;
    /** Id of the answer to extend, or null. The extended answer gets a new id. */
    let extended: string | null = null;
    let lostSince: number | null = null;
    let reportedLost = false;
    const finishes = sampling.on_disconnect === "finish";
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          if (messagesBefore === null || attempt) {
            const session = await this.#sessions.get(this.session, { signal });
            if (messagesBefore === null && continued) {
              const last = (await this.#sessions.messages(this.session, { signal })).at(session.messages - 1)?.id ?? null;
              extended = continued === true || continued === last ? last : null; // another one is refused
            }
            messagesBefore ??= session.messages;
            if (attempt && session.answering) {
              if (this.#cancelled && finishes) await this.#sessions.cancel(this.session, { signal });
              throw new StreamError("the session is still being answered", { code: "session_busy", type: "conflict_error" });
            }
          }
          const answer = attempt ? await this.#findAnswer(messagesBefore, content, extended, signal) : null;
          if (answer) {
            this.onlost?.(null);
            this.#answering = false;
            return yield { type: "response.completed", message: answer };
          }
          const connection = await this.#connect(signal);
          this.#throwIfClosed();
          connection.send({ ...sampling, type: "message.create", content });
          this.#sent = true;
          if (this.#cancelled) connection.send({ type: "response.cancel" });
          for (;;) {
            const event = parseEvent<ResponseEvent>(await connection.next(signal));
            if (reportedLost) this.onlost?.(null);
            [reportedLost, lostSince, this.#abandoned] = [false, null, false];
            if (event.type === "response.completed") this.#answering = false;
            yield event;
            if (!this.#answering) return;
          }
        } catch (error) {
          this.#sent = false;
          this.#throwIfClosed();
          const busy = error instanceof StreamError && error.code === "session_busy" && (attempt > 0 || this.#abandoned);
          if (!busy) this.#drop();
          if (signal?.aborted || !(busy || isTransient(error))) throw error;
          const lost = !(error instanceof StreamError && error.type !== null); // an error with a type was sent by the server
          if (!reportedLost && lost) this.onlost?.(error as Error);
          reportedLost ||= lost;
          lostSince ??= Date.now();
          const seconds = busy ? (finishes ? 0.5 : 0.1) : retryDelay(attempt, error);
          const waited = busy && finishes ? 0 : Date.now() - lostSince; // the server needs any time to finish an answer
          if (seconds === null || waited >= this.#transport.outageTimeout * 1000) throw error;
          await sleep(seconds, signal);
          this.#throwIfClosed();
        }
      }
    } finally {
      this.#sent = false;
      if (this.#answering) {
        this.#answering = false;
        this.#abandoned = true;
        this.#drop();
      }
    }
  }

  /** Cancels the running answer. Its last event then carries the text generated so far. */
  cancel(): void {
    if (!this.#answering) return;
    this.#cancelled = true;
    if (this.#sent) this.#connection?.send({ type: "response.cancel" });
  }

  /**
   * Closes the connection. A running answer and its message are discarded, unless `on_disconnect` is "finish", and its events end with a
   * `StreamError`. The next message connects again.
   */
  close(): void {
    this.#closed = this.#answering;
    this.#drop();
  }

  #throwIfClosed(): void {
    if (this.#closed) throw new StreamError("the conversation was closed before the answer was complete", { code: "closed" });
  }

  #drop(): void {
    this.#connection?.close();
    this.#connection = null;
  }

  async #connect(signal?: AbortSignal): Promise<Connection> {
    if (!this.#connection?.open) {
      this.#drop();
      this.#connection = await Connection.to(await this.#transport.socket(path("sessions", this.session, "stream"), signal), signal);
    }
    return this.#connection;
  }

  /** The answer to `content`, if both follow the first `messagesBefore` messages of the session; or else the last of these, if it extends `extended`; else null. */
  async #findAnswer(messagesBefore: number, content: string, extended: string | null, signal?: AbortSignal): Promise<Message | null> {
    const messages = await this.#sessions.messages(this.session, { signal });
    if (extended !== null) {
      const last = messages[messagesBefore - 1];
      return last && last.id !== extended ? last : null;
    }
    const [question, answer] = messages.slice(messagesBefore);
    return question?.role === "user" && question.content === content && answer?.role === "assistant" ? answer : null;
  }
}

const REASONS: Record<number, string> = {
  1001: "the server is shutting down",
  1008: "the server refused the request",
  1012: "the server is restarting",
  1013: "the server is overloaded",
};

/** An open socket, and a queue of the frames received. */
class Connection {
  readonly #socket: WebSocket;
  readonly #frames: string[] = [];
  #wake: () => void = () => {};
  #end: Error | null = null;

  private constructor(socket: WebSocket) {
    this.#socket = socket;
    socket.addEventListener("message", ({ data }) => {
      this.#frames.push(String(data));
      this.#wake();
    });
    socket.addEventListener("close", ({ code, reason }) => {
      const text = REASONS[code] ?? `the connection was lost (${code})`;
      this.#end = new StreamError(reason ? `${text}: ${reason}` : text, { closeCode: code });
      this.#wake();
    });
  }

  static to(socket: WebSocket, signal?: AbortSignal): Promise<Connection> {
    const connection = new Connection(socket);
    return new Promise((resolve, reject) => {
      const abort = () => (socket.close(), reject(signal?.reason));
      const settled = () => signal?.removeEventListener("abort", abort);
      if (signal?.aborted) return abort();
      signal?.addEventListener("abort", abort, { once: true });
      socket.addEventListener("open", () => (settled(), resolve(connection)), { once: true });
      socket.addEventListener("error", () => (settled(), reject(new APIConnectionError(`no response from ${socket.url}`))), { once: true });
    });
  }

  get open(): boolean {
    return this.#end === null && this.#socket.readyState === this.#socket.OPEN;
  }

  send(message: object): void {
    if (this.open) this.#socket.send(JSON.stringify(message));
  }

  close(): void {
    this.#socket.close();
  }

  /** The next frame. Throws the reason if the connection was closed. */
  async next(signal?: AbortSignal): Promise<string> {
    while (this.#frames.length === 0) {
      if (signal?.aborted) throw signal.reason;
      if (this.#end) throw this.#end;
      await new Promise<void>((resolve) => {
        this.#wake = resolve;
        signal?.addEventListener("abort", this.#wake, { once: true });
      });
      signal?.removeEventListener("abort", this.#wake);
    }
    return this.#frames.shift() as string;
  }
}

