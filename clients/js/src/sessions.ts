/** `client.sessions`: ask about documents. */
import { Conversation } from "./conversation.js";
import { ReadingFailedError, StreamError } from "./errors.js";
import { delay, passing, pause } from "./patience.js";
import { type Transport, path } from "./transport.js";
import type { CallOptions, List, Message, PostOptions, Recall, ResponseEvent, Sampling, Session, SessionMemory } from "./types.js";

export class Sessions {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Begins a session on the documents with these ids, in this order; they may still be being read. */
  create(
    documents: string[] = [],
    options: PostOptions & { model?: string; recall?: Recall | false } = {},
  ): Promise<Session> {
    const { model, recall, ...rest } = options;
    return this.#transport.json({ method: "POST", path: path("sessions"), json: { documents, model, recall }, ...rest });
  }

  /** The session as it is now. */
  get(id: string, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "GET", path: path("sessions", id), ...options });
  }

  /** A page of the sessions, newest first. */
  list(options: CallOptions & { limit?: number; after?: string } = {}): Promise<List<Session>> {
    const { limit, after, signal } = options;
    return this.#transport.json({ method: "GET", path: path("sessions"), query: { limit, after }, signal });
  }

  /** Gives the session another title, of at most 200 characters; null: the next question gives it one. */
  rename(id: string, title: string | null, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "PATCH", path: path("sessions", id), json: { title }, ...options });
  }

  /** What messages that say nothing of `recall` are grounded on; null: what the server does by itself. */
  setRecall(id: string, recall: Recall | false | null, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "PATCH", path: path("sessions", id), json: { recall }, ...options });
  }

  /** Deletes the session and its memory. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ method: "DELETE", path: path("sessions", id), ...options });
  }

  /** A new session that remembers what this one does; from here on they go their own ways. */
  fork(id: string, options: PostOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "POST", path: path("sessions", id, "fork"), ...options });
  }

  /** What the session's memory holds, how full it is, and what it gives attention and space to. */
  memory(id: string, options: CallOptions = {}): Promise<SessionMemory> {
    return this.#transport.json({ method: "GET", path: path("sessions", id, "memory"), ...options });
  }

  /** The dialogue so far, oldest first. */
  async messages(id: string, options: CallOptions = {}): Promise<Message[]> {
    const call = { method: "GET", path: path("sessions", id, "messages"), ...options } as const;
    return (await this.#transport.json<List<Message>>(call)).data;
  }

  /** Waits until the session has read its documents. Throws `ReadingFailedError` if it cannot. */
  async wait(id: string, options: CallOptions & { onProgress?: (session: Session) => void } = {}): Promise<Session> {
    let lost: number | null = null;
    let seen = false;
    for (let seconds = 0.1, attempt = 0; ; seconds = Math.min(2 * seconds, 2)) {
      let session: Session;
      try {
        session = await this.get(id, options);
      } catch (error) {
        if (options.signal?.aborted || !seen || !passing(error)) throw error;
        lost ??= Date.now();
        if (Date.now() - lost >= this.#transport.patience * 1000) throw error;
        await pause(delay(attempt++, error) ?? 8, options.signal);
        continue;
      }
      [seen, lost, attempt] = [true, null, 0];
      options.onProgress?.(session);
      if (session.status === "ready") return session;
      if (session.status === "failed") throw new ReadingFailedError(`the documents of ${id} could not be read`, id, null);
      await pause(seconds, options.signal);
    }
  }

  /** Asks, and waits for the whole answer. Throws `SessionBusyError` while another is being written. */
  send(id: string, content: string, sampling: Sampling = {}, options: PostOptions = {}): Promise<Message> {
    return this.#transport.json({ ...asked(id, { ...sampling, content }), ...options });
  }

  /**
   * Asks, and yields the answer's events as they come; the last is `response.completed`. Leaving the loop early, like
   * aborting, ends the answer, and nothing has happened to the session.
   */
  async *stream(id: string, content: string, sampling: Sampling = {}, options: PostOptions = {}): AsyncGenerator<ResponseEvent> {
    const call = { ...asked(id, { ...sampling, content, stream: true }), ...options };
    for await (const event of this.#transport.events<ResponseEvent>(call)) {
      yield event;
      if (event.type === "response.completed") return;
    }
    throw new StreamError("the stream ended before the answer was complete");
  }

  /** A conversation over one WebSocket, whose answers can be cancelled and outlive lost connections. */
  connect(id: string): Conversation {
    return new Conversation(this.#transport, id, this);
  }
}

function asked(id: string, json: object) {
  return { method: "POST", path: path("sessions", id, "messages"), json } as const;
}
