/** Uploads a source in one request, or in parts if it is large, and reports the progress. */
import { blobOf, bodyOf, collect, contentTypeOf, sender } from "./body.js";
import { watchConversion } from "./conversion-progress.js";
import { PART, uploadInParts } from "./multipart.js";
import { newIdempotencyKey } from "./retry.js";
import type { Call, Transport } from "./transport.js";
import type { Document, Source, UploadOptions } from "./types.js";

/** Uploads `source`. A stream is sent while it is read; browsers do not support that, so there it is buffered first. */
export async function upload(transport: Transport, source: Source, options: UploadOptions): Promise<Document> {
  const filename = options.filename ?? (source instanceof Blob && "name" in source ? String(source.name) : undefined);
  const browser = typeof XMLHttpRequest === "function";
  const blob = blobOf(source) ?? (browser ? await collect(source as AsyncIterable<Uint8Array | string>) : null);
  if (blob && blob.size > (options.partSize ?? PART)) return uploadInParts(transport, blob, filename, options);
  const call: Call = {
    method: "POST",
    path: "/v1/documents",
    query: { filename, ocr_language: options.ocrLanguage },
    headers: { "Content-Type": options.contentType ?? contentTypeOf(source) },
    signal: options.signal,
    idempotencyKey: options.idempotencyKey ?? newIdempotencyKey(),
  };
  const { onProgress, signal } = options;
  const progress = blob && onProgress && ((sent: number) => onProgress(sent, blob.size));
  const send =
    browser && blob
      ? sender(transport, blob, progress ?? undefined, signal)
      : (url: string, headers: Record<string, string>) =>
          transport.fetch(url, { method: "POST", headers, signal: signal ?? null, ...bodyOf(blob, source, options) });
  return watchConversion(transport, call, options, () => transport.upload<Document>(call, send, blob !== null));
}
