/** The body of an upload: conversions of its source, and functions that send it and report the progress. */
import type { Exchange, Transport } from "./transport.js";
import type { Source, ArchiveOptions } from "./types.js";

/** Returns a function that sends `body`. It reports the bytes sent only in a browser, where that is possible. */
export function sender(transport: Transport, body: Blob | FormData, onSent: ((bytes: number) => void) | undefined, signal: AbortSignal | undefined): Exchange {
  if (typeof XMLHttpRequest === "function" && onSent) return byXMLHttpRequest(body, onSent, signal);
  return (url, headers) => transport.fetch(url, { method: "POST", headers, signal: signal ?? null, body });
}

export function contentTypeOf(source: Source): string {
  if (source instanceof Blob) return source.type || "application/octet-stream";
  return source instanceof ArrayBuffer || source instanceof Uint8Array ? "application/octet-stream" : "text/plain; charset=utf-8";
}

export function blobOf(source: Source): Blob | null {
  if (source instanceof Blob) return source;
  return typeof source === "string" || source instanceof ArrayBuffer || source instanceof Uint8Array ? new Blob([source]) : null;
}

export async function collect(source: AsyncIterable<Uint8Array | string>): Promise<Blob> {
  return new Response(countingStream(source, null, {})).blob();
}

export function bodyOf(blob: Blob | null, source: Source, options: ArchiveOptions): RequestInit {
  if (blob && !options.onProgress) return { body: blob };
  const stream = blob ? blob.stream() : (source as AsyncIterable<Uint8Array | string>);
  const body = countingStream(stream, blob?.size ?? null, options);
  return { body, duplex: "half" } as RequestInit; // `duplex` is missing in lib.dom
}

/** Turns `source` into a stream of bytes that reports its progress. */
function countingStream(
  source: AsyncIterable<Uint8Array | string>,
  total: number | null,
  { onProgress, signal }: ArchiveOptions,
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
