/** `client.documents`: upload texts and follow their reading. */
import { ReadingFailedError } from "./errors.js";
import { delay, passing, pause } from "./patience.js";
import { type Transport, path } from "./transport.js";
import type { CallOptions, Document, DocumentText, Formats, List } from "./types.js";
import { type Source, type UploadOptions, upload } from "./upload.js";

export class Documents {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Uploads a text; the server begins to read it when it is there. */
  upload(source: Source, options: UploadOptions = {}): Promise<Document> {
    return upload(this.#transport, source, options);
  }

  /** The files that the server takes, and how large they may be. */
  formats(options: CallOptions = {}): Promise<Formats> {
    return this.#transport.json({ method: "GET", path: path("formats"), ...options });
  }

  /** The document as it is now. */
  get(id: string, options: CallOptions = {}): Promise<Document> {
    return this.#transport.json({ method: "GET", path: path("documents", id), ...options });
  }

  /** A page of the documents, newest first. */
  list(options: CallOptions & { limit?: number; after?: string } = {}): Promise<List<Document>> {
    const { limit, after, signal } = options;
    return this.#transport.json({ method: "GET", path: path("documents"), query: { limit, after }, signal });
  }

  /** Deletes the document; sessions made from it keep what they know. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ method: "DELETE", path: path("documents", id), ...options });
  }

  /** A part of the text, in bytes of its UTF-8, as evidence counts; at most 64 KiB. */
  text(id: string, options: CallOptions & { startByte?: number; endByte?: number } = {}): Promise<DocumentText> {
    const { startByte, endByte, signal } = options;
    const query = { start_byte: startByte, end_byte: endByte };
    return this.#transport.json({ method: "GET", path: path("documents", id, "text"), query, signal });
  }

  /**
   * The document each time that it has changed, until it is `ready` or `failed`. Goes on through restarts of the server;
   * throws when it is away for longer than the client has patience, or from the beginning.
   */
  async *follow(id: string, { signal }: CallOptions = {}): AsyncGenerator<Document> {
    const call = { method: "GET", path: path("documents", id, "events"), signal } as const;
    let seen = false;
    let lost: number | null = null;
    for (let attempt = 0; ; attempt++) {
      try {
        for await (const event of this.#transport.events<{ type: string; document: Document }>(call)) {
          if (event.type === "document.deleted") break; // asking anew says that there is none
          [seen, lost, attempt] = [true, null, 0];
          yield event.document;
          if (event.document.status === "ready" || event.document.status === "failed") return;
        }
      } catch (error) {
        if (signal?.aborted || !seen || !passing(error)) throw error;
        lost ??= Date.now();
        if (Date.now() - lost >= this.#transport.patience * 1000) throw error;
        await pause(delay(attempt, error) ?? 8, signal);
        continue;
      }
      await pause(0.1, signal);
    }
  }

  /** Waits until the document is read. Throws `ReadingFailedError` if it cannot be. */
  async wait(id: string, options: CallOptions & { onProgress?: (document: Document) => void } = {}): Promise<Document> {
    for await (const document of this.follow(id, options)) {
      options.onProgress?.(document);
      if (document.status === "ready") return document;
      if (document.status === "failed") {
        const { message, code } = document.error ?? { message: "the server does not say why", code: null };
        throw new ReadingFailedError(`${id} could not be read: ${message}`, id, code);
      }
    }
    throw new Error("unreachable: following ends with the end of reading");
  }
}
