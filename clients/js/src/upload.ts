/** Uploads a source in one request, or in parts if it is large, and reports the progress. */
import { type UploadState, PART, uploadInParts } from "./multipart.js";
import type { Call, Exchange, Transport } from "./transport.js";
import type { Document, PostOptions } from "./types.js";

export type Source =
  | string
  | Blob
  | ArrayBuffer
  | Uint8Array<ArrayBuffer>
  | ReadableStream<Uint8Array | string>
  | AsyncIterable<Uint8Array | string>;

export interface UploadOptions extends PostOptions {
  /** The document's name. Default: the name of a File. */
  filename?: string | undefined;
  /**
   * Default: text/plain for strings and streams, the type of a Blob, else application/octet-stream, for which the server
   * detects the format.
   */
  contentType?: string | undefined;
  /** Called with the bytes sent so far. `total` is null for a stream. */
  onProgress?: ((sent: number, total: number | null) => void) | undefined;
  /** Larger sources are sent in parts of this size in bytes, each with its own retries. Default: 8 MiB. */
  partSize?: number | undefined;
  /** An object in which an upload in parts records its progress. Pass it again to resume an interrupted upload. */
  state?: UploadState | undefined;
}

/** Uploads `source`. A stream is sent while it is read; browsers do not support that, so there it is buffered first. */
export async function upload(transport: Transport, source: Source, options: UploadOptions): Promise<Document> {
  const filename = options.filename ?? (source instanceof Blob && "name" in source ? String(source.name) : undefined);
  const browser = typeof XMLHttpRequest === "function";
  const blob = blobOf(source) ?? (browser ? await collect(source as AsyncIterable<Uint8Array | string>) : null);
  if (blob && blob.size > (options.partSize ?? PART)) return uploadInParts(transport, blob, filename, options);
  const call: Call = {
    method: "POST",
    path: "/v1/documents",
    query: { filename },
    headers: { "Content-Type": options.contentType ?? contentTypeOf(source) },
    signal: options.signal,
    idempotencyKey: options.idempotencyKey,
  };
  const { onProgress, signal } = options;
  const progress = blob && onProgress && ((sent: number) => onProgress(sent, blob.size));
  const send =
    browser && blob
      ? sender(transport, blob, progress ?? undefined, signal)
      : (url: string, headers: Record<string, string>) =>
          transport.fetch(url, { method: "POST", headers, signal: signal ?? null, ...bodyOf(blob, source, options) });
  return transport.upload<Document>(call, send, blob !== null);
}

/** Returns a function that sends `body`. It reports the bytes sent only in a browser, where that is possible. */
export function sender(transport: Transport, body: Blob | FormData, onSent: ((bytes: number) => void) | undefined, signal: AbortSignal | undefined): Exchange {
  if (typeof XMLHttpRequest === "function" && onSent) return byXMLHttpRequest(body, onSent, signal);
  return (url, headers) => transport.fetch(url, { method: "POST", headers, signal: signal ?? null, body });
}

function contentTypeOf(source: Source): string {
  if (source instanceof Blob) return source.type || "application/octet-stream";
  return source instanceof ArrayBuffer || source instanceof Uint8Array ? "application/octet-stream" : "text/plain; charset=utf-8";
}

function blobOf(source: Source): Blob | null {
  if (source instanceof Blob) return source;
  return typeof source === "string" || source instanceof ArrayBuffer || source instanceof Uint8Array ? new Blob([source]) : null;
}

async function collect(source: AsyncIterable<Uint8Array | string>): Promise<Blob> {
  return new Response(countingStream(source, null, {})).blob();
}

function bodyOf(blob: Blob | null, source: Source, options: UploadOptions): RequestInit {
  if (blob && !options.onProgress) return { body: blob };
  const stream = blob ? blob.stream() : (source as AsyncIterable<Uint8Array | string>);
  const body = countingStream(stream, blob?.size ?? null, options);
  return { body, duplex: "half" } as RequestInit; // `duplex` is missing in lib.dom
}

/** Turns `source` into a stream of bytes that reports its progress. */
function countingStream(
  source: AsyncIterable<Uint8Array | string>,
  total: number | null,
  { onProgress, signal }: UploadOptions,
): ReadableStream<Uint8Array> {
  const pieces = iterate(source)[Symbol.asyncIterator]();
  const encoder = new TextEncoder();
  let sent = 0;
  return new ReadableStream<Uint8Array>({
    start: () => onProgress?.(0, total),
    async pull(controller) {
      signal?.throwIfAborted();
      const { done, value } = await pieces.next();
      if (done) return controller.close();
      const bytes = typeof value === "string" ? encoder.encode(value) : value;
      controller.enqueue(bytes);
      onProgress?.((sent += bytes.length), total);
    },
    cancel: async () => void (await pieces.return?.()),
  });
}

/** Makes a stream iterable, which it is not in Safari. */
async function* iterate<T>(source: AsyncIterable<T> | ReadableStream<T>): AsyncIterable<T> {
  if (Symbol.asyncIterator in source) return yield* source as AsyncIterable<T>;
  const reader = (source as ReadableStream<T>).getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** Sends with XMLHttpRequest: `fetch` does not report how much of the body was sent. */
function byXMLHttpRequest(body: Blob | FormData, onSent: (bytes: number) => void, signal: AbortSignal | undefined): Exchange {
  return (url, headers) =>
    new Promise<Response>((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", url);
      for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => onSent(event.loaded);
      const abort = () => request.abort();
      request.onloadend = () => {
        signal?.removeEventListener("abort", abort);
        if (request.status === 0) return reject(signal?.aborted ? signal.reason : new TypeError("the connection was lost"));
        const retryAfter = request.getResponseHeader("retry-after");
        resolve(new Response(request.responseText, { status: request.status, headers: retryAfter ? { "retry-after": retryAfter } : {} }));
      };
      if (signal?.aborted) return reject(signal.reason);
      signal?.addEventListener("abort", abort, { once: true });
      onSent(0);
      request.send(body);
    });
}
