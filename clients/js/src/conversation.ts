/** `Conversation`: a session's WebSocket, opened when it is needed and again when it is lost. */
import { APIConnectionError, StreamError } from "./errors.js";
import { delay, passing, pause } from "./patience.js";
import type { Sessions } from "./sessions.js";
import { type Transport, parsedEvent, path } from "./transport.js";
import type { CallOptions, Message, ResponseEvent, Sampling } from "./types.js";

/**
 * One answer after the other. If the connection is lost in the middle of one, the conversation connects again, as long as
 * the client has patience, and looks: an answer that was complete is fetched, any other is asked for again, since nothing
 * has happened to the session. The new one begins with a `response.created` of its own; what came before it is void.
 */
export class Conversation {
  readonly session: string;
  /** Told when the connection is lost, with the reason, and with null when it is there again. */
  onlost: ((error: Error | null) => void) | null = null;
  readonly #transport: Transport;
  readonly #sessions: Sessions;
  #link: Link | null = null;
  #answering = false;
  /** The answer under way has been asked for over the link. */
  #asked = false;
  /** It is to end, as soon as it has been asked for. */
  #cancelled = false;
  /** An answer was left: the server needs a moment to let go of the session. */
  #left = false;

  constructor(transport: Transport, session: string, sessions: Sessions) {
    this.#transport = transport;
    this.session = session;
    this.#sessions = sessions;
  }

  /**
   * Asks, and yields the answer's events as they come; the last is `response.completed`. Leaving the loop early, like
   * aborting, ends the answer without a trace; `cancel` ends it and keeps what was said.
   */
  async *send(content: string, sampling: Sampling = {}, { signal }: CallOptions = {}): AsyncGenerator<ResponseEvent> {
    if (this.#answering) throw new StreamError("this conversation has an answer under way", { code: "session_busy" });
    [this.#answering, this.#cancelled] = [true, false];
    let before: number | null = null;
    let since: number | null = null;
    let told = false;
    try {
      for (let attempt = 0; ; attempt++) {
        try {
          before ??= (await this.#sessions.get(this.session, { signal })).messages;
          const answer = attempt ? await this.#answered(before, content, signal) : null;
          if (answer) {
            this.onlost?.(null);
            this.#answering = false;
            return yield { type: "response.completed", message: answer };
          }
          const link = await this.#connected(signal);
          link.send({ ...sampling, type: "message.create", content });
          this.#asked = true;
          if (this.#cancelled) link.send({ type: "response.cancel" });
          for (;;) {
            const event = parsedEvent<ResponseEvent>(await link.next(signal));
            if (told) this.onlost?.(null);
            [told, since, this.#left] = [false, null, false];
            if (event.type === "response.completed") this.#answering = false;
            yield event;
            if (!this.#answering) return;
          }
        } catch (error) {
          this.#asked = false;
          const busy = error instanceof StreamError && error.code === "session_busy" && (attempt > 0 || this.#left);
          if (!busy) this.#drop();
          if (signal?.aborted || !(busy || passing(error))) throw error;
          const lost = !(error instanceof StreamError && error.type !== null); // else the server has said what is wrong
          if (!told && lost) this.onlost?.(error as Error);
          told ||= lost;
          since ??= Date.now();
          const seconds = busy ? 0.1 : delay(attempt, error);
          if (seconds === null || Date.now() - since >= this.#transport.patience * 1000) throw error;
          await pause(seconds, signal);
        }
      }
    } finally {
      this.#asked = false;
      if (this.#answering) {
        this.#answering = false;
        this.#left = true;
        this.#drop();
      }
    }
  }

  /** Ends the answer that is being written; its events then end with what there is of it. */
  cancel(): void {
    if (!this.#answering) return;
    this.#cancelled = true;
    if (this.#asked) this.#link?.send({ type: "response.cancel" });
  }

  /** Closes the connection. An answer under way ends without a trace. */
  close(): void {
    this.#drop();
  }

  #drop(): void {
    this.#link?.close();
    this.#link = null;
  }

  async #connected(signal?: AbortSignal): Promise<Link> {
    if (!this.#link?.open) {
      this.#drop();
      this.#link = await Link.to(await this.#transport.socket(path("sessions", this.session, "stream"), signal), signal);
    }
    return this.#link;
  }

  /** The answer to `content`, if it stands behind the first `before` messages. */
  async #answered(before: number, content: string, signal?: AbortSignal): Promise<Message | null> {
    const [question, answer] = (await this.#sessions.messages(this.session, { signal })).slice(before);
    return question?.role === "user" && question.content === content && answer?.role === "assistant" ? answer : null;
  }
}

const REASONS: Record<number, string> = {
  1001: "the server is shutting down",
  1008: "the server refused",
  1012: "the server is restarting",
  1013: "the server is overloaded",
};

/** An open socket, and what came over it. */
class Link {
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

  static to(socket: WebSocket, signal?: AbortSignal): Promise<Link> {
    const link = new Link(socket);
    return new Promise((resolve, reject) => {
      const abort = () => (socket.close(), reject(signal?.reason));
      const settled = () => signal?.removeEventListener("abort", abort);
      if (signal?.aborted) return abort();
      signal?.addEventListener("abort", abort, { once: true });
      socket.addEventListener("open", () => (settled(), resolve(link)), { once: true });
      socket.addEventListener("error", () => (settled(), reject(new APIConnectionError(`no answer from ${socket.url}`))), { once: true });
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

  /** The next frame. Throws why there is none. */
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

