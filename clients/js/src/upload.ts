/** The body of an upload, and how far it has come. */
import type { Call, Transport } from "./transport.js";
import type { Document, PostOptions } from "./types.js";

export type Source =
  | string
  | Blob
  | ArrayBuffer
  | Uint8Array<ArrayBuffer>
  | ReadableStream<Uint8Array | string>
  | AsyncIterable<Uint8Array | string>;

export interface UploadOptions extends PostOptions {
  /** A name for people. Default: a File's own. */
  filename?: string | undefined;
  /** Default: text/plain for strings and streams, a Blob's own, else application/octet-stream, which the server looks into. */
  contentType?: string | undefined;
  /** Called with bytes as they leave; `total` is null for a stream. */
  onProgress?: ((sent: number, total: number | null) => void) | undefined;
}

/** Uploads `source`. A stream is read once and sent as it comes; a browser, which cannot do that, gathers it first. */
export async function upload(transport: Transport, source: Source, options: UploadOptions): Promise<Document> {
  const filename = options.filename ?? (source instanceof Blob && "name" in source ? String(source.name) : undefined);
  const call: Call = {
    method: "POST",
    path: "/v1/documents",
    query: { filename },
    headers: { "Content-Type": options.contentType ?? typeOf(source) },
    signal: options.signal,
    idempotencyKey: options.idempotencyKey,
  };
  const browser = typeof XMLHttpRequest === "function";
  const blob = blobOf(source) ?? (browser ? await gathered(source as AsyncIterable<Uint8Array | string>) : null);
  const send =
    browser && blob && options.onProgress
      ? byXMLHttpRequest(blob, options)
      : (url: string, headers: Record<string, string>) =>
          transport.fetch(url, { method: "POST", headers, signal: options.signal ?? null, ...bodyOf(blob, source, options) });
  return transport.upload<Document>(call, send, blob !== null);
}

function typeOf(source: Source): string {
  if (source instanceof Blob) return source.type || "application/octet-stream";
  return source instanceof ArrayBuffer || source instanceof Uint8Array ? "application/octet-stream" : "text/plain; charset=utf-8";
}

function blobOf(source: Source): Blob | null {
  if (source instanceof Blob) return source;
  return typeof source === "string" || source instanceof ArrayBuffer || source instanceof Uint8Array ? new Blob([source]) : null;
}

async function gathered(source: AsyncIterable<Uint8Array | string>): Promise<Blob> {
  return new Response(counted(source, null, {})).blob();
}

function bodyOf(blob: Blob | null, source: Source, options: UploadOptions): RequestInit {
  if (blob && !options.onProgress) return { body: blob };
  const stream = blob ? blob.stream() : (source as AsyncIterable<Uint8Array | string>);
  const body = counted(stream, blob?.size ?? null, options);
  return { body, duplex: "half" } as RequestInit; // what lib.dom does not know of yet
}

/** `source` as bytes, counted as they are taken. */
function counted(
  source: AsyncIterable<Uint8Array | string>,
  total: number | null,
  { onProgress, signal }: UploadOptions,
): ReadableStream<Uint8Array> {
  const pieces = iterated(source)[Symbol.asyncIterator]();
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

/** A stream as an iterable: Safari's are none. */
async function* iterated<T>(source: AsyncIterable<T> | ReadableStream<T>): AsyncIterable<T> {
  if (Symbol.asyncIterator in source) return yield* source as AsyncIterable<T>;
  const reader = (source as ReadableStream<T>).getReader();
  try {
    for (let piece = await reader.read(); !piece.done; piece = await reader.read()) yield piece.value;
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The one way in which a browser tells how much of a body has left. */
function byXMLHttpRequest(blob: Blob, { onProgress, signal }: UploadOptions) {
  return (url: string, headers: Record<string, string>) =>
    new Promise<Response>((resolve, reject) => {
      const request = new XMLHttpRequest();
      request.open("POST", url);
      for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => onProgress?.(event.loaded, blob.size);
      const abort = () => request.abort();
      request.onloadend = () => {
        signal?.removeEventListener("abort", abort);
        if (request.status === 0) return reject(signal?.aborted ? signal.reason : new TypeError("the connection was lost"));
        const retryAfter = request.getResponseHeader("retry-after");
        resolve(new Response(request.responseText, { status: request.status, headers: retryAfter ? { "retry-after": retryAfter } : {} }));
      };
      if (signal?.aborted) return reject(signal.reason);
      signal?.addEventListener("abort", abort, { once: true });
      onProgress?.(0, blob.size);
      request.send(blob);
    });
}
