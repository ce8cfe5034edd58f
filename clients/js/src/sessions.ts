/** `client.sessions`: ask questions about documents. */
import { Conversation } from "./conversation.js";
import { ReadingFailedError, StreamError } from "./errors.js";
import { isTransient, retryDelay, sleep } from "./retry.js";
import { type Transport, path } from "./transport.js";
import type { CallOptions, List, Message, NewSession, PostOptions, Recall, ResponseEvent, RunningTurn, Sampling, Session, SessionMemory } from "./types.js";

export class Sessions {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Creates a session on the documents with these ids, in this order. They may still be in reading. `messages`: earlier questions
   * and answers that it continues; `parent`: the session that they come from.
   */
  create(documents: string[] = [], options: PostOptions & NewSession = {}): Promise<Session> {
    const { model, recall, messages, title, parent, ...rest } = options;
    const json = { documents, model, recall, messages, title, parent };
    return this.#transport.json({ method: "POST", path: path("sessions"), json, ...rest });
  }

  /** The current state of the session. */
  get(id: string, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "GET", path: path("sessions", id), ...options });
  }

  /**
   * A page of the sessions, newest first. `query`: only those that have all these words in the title, the messages or the names of the
   * documents. `branchesOf`: only this session and those that branched off from the same one.
   */
  list(options: CallOptions & { limit?: number; after?: string; query?: string; branchesOf?: string } = {}): Promise<List<Session>> {
    const { limit, after, query, branchesOf, signal } = options;
    return this.#transport.json({ method: "GET", path: path("sessions"), query: { limit, after, query, branches_of: branchesOf }, signal });
  }

  /** Sets the title, of at most 200 characters. With null the next question becomes the title. */
  rename(id: string, title: string | null, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "PATCH", path: path("sessions", id), json: { title }, ...options });
  }

  /** Sets the session's default for messages without `recall`. Null restores the server's default. */
  setRecall(id: string, recall: Recall | false | null, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "PATCH", path: path("sessions", id), json: { recall }, ...options });
  }

  /** Deletes the session and its memory. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ method: "DELETE", path: path("sessions", id), ...options });
  }

  /** Copies the session with its memory and messages. The two sessions are independent from then on. */
  fork(id: string, options: PostOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "POST", path: path("sessions", id, "fork"), ...options });
  }

  /** What the session's memory holds, how full it is, and where its attention and space go. */
  memory(id: string, options: CallOptions = {}): Promise<SessionMemory> {
    return this.#transport.json({ method: "GET", path: path("sessions", id, "memory"), ...options });
  }

  /** The session's messages, oldest first. */
  async messages(id: string, options: CallOptions = {}): Promise<Message[]> {
    const call = { method: "GET", path: path("sessions", id, "messages"), ...options } as const;
    return (await this.#transport.json<List<Message>>(call)).data;
  }

  /** The message that is being answered, and its answer so far, if it was sent with `on_disconnect` "finish"; else null. */
  async running(id: string, options: CallOptions = {}): Promise<RunningTurn | null> {
    const call = { method: "GET", path: path("sessions", id, "messages"), ...options } as const;
    return (await this.#transport.json<{ running?: RunningTurn }>(call)).running ?? null;
  }

  /** Ends an answer to a message that was sent with `on_disconnect` "finish". Its text so far is kept. */
  cancel(id: string, options: CallOptions = {}): Promise<Session> {
    return this.#transport.json({ method: "POST", path: path("sessions", id, "cancel"), ...options });
  }

  /** Waits until the session has read its documents. Throws `ReadingFailedError` if one cannot be read. */
  async wait(id: string, options: CallOptions & { onProgress?: (session: Session) => void } = {}): Promise<Session> {
    let lost: number | null = null;
    let seen = false;
    for (let seconds = 0.1, attempt = 0; ; seconds = Math.min(2 * seconds, 2)) {
      let session: Session;
      try {
        session = await this.get(id, options);
      } catch (error) {
        if (options.signal?.aborted || !seen || !isTransient(error)) throw error;
        lost ??= Date.now();
        if (Date.now() - lost >= this.#transport.outageTimeout * 1000) throw error;
        await sleep(retryDelay(attempt++, error) ?? 8, options.signal);
        continue;
      }
      [seen, lost, attempt] = [true, null, 0];
      options.onProgress?.(session);
      if (session.status === "ready") return session;
      if (session.status === "failed") throw new ReadingFailedError(`the documents of ${id} could not be read`, id, null);
      await sleep(seconds, options.signal);
    }
  }

  /** Sends a message and returns the whole answer. Throws `SessionBusyError` while another answer is generated. */
  send(id: string, content: string, sampling: Sampling = {}, options: PostOptions = {}): Promise<Message> {
    return this.#transport.json({ ...asked(id, { ...sampling, content }), ...options });
  }

  /**
   * Sends a message and yields the answer's events; the last is `response.completed`. Leaving the loop early, or aborting,
   * cancels the answer and leaves the session unchanged, unless `on_disconnect` is "finish".
   */
  async *stream(id: string, content: string, sampling: Sampling = {}, options: PostOptions = {}): AsyncGenerator<ResponseEvent> {
    const call = { ...asked(id, { ...sampling, content, stream: true }), ...options };
    for await (const event of this.#transport.events<ResponseEvent>(call)) {
      yield event;
      if (event.type === "response.completed") return;
    }
    throw new StreamError("the stream ended before the answer was complete");
  }

  /** A conversation over one WebSocket, whose answers can be cancelled and survive lost connections. */
  connect(id: string): Conversation {
    return new Conversation(this.#transport, id, this);
  }
}

function asked(id: string, json: object) {
  return { method: "POST", path: path("sessions", id, "messages"), json } as const;
}
