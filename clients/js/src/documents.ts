/** `client.documents`: upload documents and wait until the server has read them. */
import { ReadingFailedError } from "./errors.js";
import { isTransient, retryDelay, sleep } from "./retry.js";
import { type Transport, path } from "./transport.js";
import type { ArchiveOptions, CallOptions, Document, DocumentText, Formats, List, Source, UploadOptions, UploadedArchive } from "./types.js";
import { upload, uploadArchive } from "./upload.js";

export class Documents {
  readonly #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Uploads a document. The server starts to read it as soon as the upload is complete. */
  upload(source: Source, options: UploadOptions = {}): Promise<Document> {
    return upload(this.#transport, source, options);
  }

  /**
   * Uploads an archive (zip, tar) of whose files the server makes a document each; with `upload`, it becomes one document. Sent in one
   * request, however large it is. The server stores all documents or, if there is an error, none.
   */
  uploadArchive(source: Source, options: ArchiveOptions = {}): Promise<UploadedArchive> {
    return uploadArchive(this.#transport, source, options);
  }

  /** The file formats that the server accepts, and their maximum size. */
  formats(options: CallOptions = {}): Promise<Formats> {
    return this.#transport.json({ method: "GET", path: path("formats"), ...options });
  }

  /** The current state of the document. */
  get(id: string, options: CallOptions = {}): Promise<Document> {
    return this.#transport.json({ method: "GET", path: path("documents", id), ...options });
  }

  /** A page of the documents, newest first. */
  list(options: CallOptions & { limit?: number; after?: string } = {}): Promise<List<Document>> {
    const { limit, after, signal } = options;
    return this.#transport.json({ method: "GET", path: path("documents"), query: { limit, after }, signal });
  }

  /** Deletes the document. Sessions made from it keep their memory. */
  async delete(id: string, options: CallOptions = {}): Promise<void> {
    await this.#transport.json({ method: "DELETE", path: path("documents", id), ...options });
  }

  /** A part of the text, of at most 64 KiB. The offsets count bytes of its UTF-8, like those of evidence. */
  text(id: string, options: CallOptions & { startByte?: number; endByte?: number } = {}): Promise<DocumentText> {
    const { startByte, endByte, signal } = options;
    const query = { start_byte: startByte, end_byte: endByte };
    return this.#transport.json({ method: "GET", path: path("documents", id, "text"), query, signal });
  }

  /**
   * A picture of a page, as PNG, for a document with `pages`. `width`: in pixels, default 1000. `startByte`, `endByte`: a passage of
   * the text to mark on the page, such as that of an evidence.
   */
  page(id: string, page: number, options: CallOptions & { width?: number; startByte?: number; endByte?: number } = {}): Promise<Blob> {
    const { width, startByte, endByte, signal } = options;
    const query = { width, start_byte: startByte, end_byte: endByte };
    return this.#transport.blob({ method: "GET", path: path("documents", id, "pages", `${page}.png`), query, signal });
  }

  /**
   * Yields the document each time that it changes, until it is `ready` or `failed`. Tolerates outages of the server of up
   * to `outageTimeout` seconds, but the first request must succeed.
   */
  async *follow(id: string, { signal }: CallOptions = {}): AsyncGenerator<Document> {
    const call = { method: "GET", path: path("documents", id, "events"), signal } as const;
    let seen = false;
    let lost: number | null = null;
    for (let attempt = 0; ; attempt++) {
      try {
        for await (const event of this.#transport.events<{ type: string; document: Document }>(call)) {
          if (event.type === "document.deleted") break; // the next request gets a 404
          [seen, lost, attempt] = [true, null, 0];
          yield event.document;
          if (event.document.status === "ready" || event.document.status === "failed") return;
        }
      } catch (error) {
        if (signal?.aborted || !seen || !isTransient(error)) throw error;
        lost ??= Date.now();
        if (Date.now() - lost >= this.#transport.outageTimeout * 1000) throw error;
        await sleep(retryDelay(attempt, error) ?? 8, signal);
        continue;
      }
      await sleep(0.1, signal);
    }
  }

  /** Waits until the document is read. Throws `ReadingFailedError` if the server cannot read it. */
  async wait(id: string, options: CallOptions & { onProgress?: (document: Document) => void } = {}): Promise<Document> {
    for await (const document of this.follow(id, options)) {
      options.onProgress?.(document);
      if (document.status === "ready") return document;
      if (document.status === "failed") {
        const { message, code } = document.error ?? { message: "the server gave no reason", code: null };
        throw new ReadingFailedError(`${id} could not be read: ${message}`, id, code);
      }
    }
    throw new Error("unreachable: `follow` ends only when the document is ready or failed");
  }
}
