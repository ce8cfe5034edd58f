/** The body of an upload, and how far it has come. */
import { type Begun, PART, uploadInParts } from "./parts.js";
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
  /** A name for people. Default: a File's own. */
  filename?: string | undefined;
  /** Default: text/plain for strings and streams, a Blob's own, else application/octet-stream, which the server looks into. */
  contentType?: string | undefined;
  /** Called with bytes as they leave; `total` is null for a stream. */
  onProgress?: ((sent: number, total: number | null) => void) | undefined;
  /** What is larger goes in parts of so many bytes, each sent again by itself. Default: 8 MiB. */
  partSize?: number | undefined;
  /** An object of the caller's: an upload in parts notes in it how far it has come, and one that was cut short goes on there. */
  begun?: Begun | undefined;
}

/** Uploads `source`. A stream is read once and sent as it comes; a browser, which cannot do that, gathers it first. */
export async function upload(transport: Transport, source: Source, options: UploadOptions): Promise<Document> {
  const filename = options.filename ?? (source instanceof Blob && "name" in source ? String(source.name) : undefined);
  const browser = typeof XMLHttpRequest === "function";
  const blob = blobOf(source) ?? (browser ? await gathered(source as AsyncIterable<Uint8Array | string>) : null);
  if (blob && blob.size > (options.partSize ?? PART)) return uploadInParts(transport, blob, filename, options);
  const call: Call = {
    method: "POST",
    path: "/v1/documents",
    query: { filename },
    headers: { "Content-Type": options.contentType ?? typeOf(source) },
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

/** Sends `body`, and tells how many bytes of it have left, where that can be known: in a browser. */
export function sender(transport: Transport, body: Blob | FormData, onSent: ((bytes: number) => void) | undefined, signal: AbortSignal | undefined): Exchange {
  if (typeof XMLHttpRequest === "function" && onSent) return byXMLHttpRequest(body, onSent, signal);
  return (url, headers) => transport.fetch(url, { method: "POST", headers, signal: signal ?? null, body });
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
