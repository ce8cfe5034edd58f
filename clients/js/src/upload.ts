/** Uploads a source in one request, or in parts if it is large, and reports the progress. */
import { blobOf, bodyOf, collect, contentTypeOf, sender } from "./body.js";
import { watchConversion } from "./conversion-progress.js";
import { PART, uploadInParts } from "./multipart.js";
import { newIdempotencyKey } from "./retry.js";
import type { Call, Transport } from "./transport.js";
import type { ArchiveOptions, Document, Source, UploadOptions, UploadedArchive } from "./types.js";

const browser = typeof XMLHttpRequest === "function";

/** Uploads `source`. A stream is sent while it is read; browsers do not support that, so there it is buffered first. */
export async function upload(transport: Transport, source: Source, options: UploadOptions): Promise<Document> {
  const blob = await bufferedIn(source);
  if (blob && blob.size > (options.partSize ?? PART)) return uploadInParts(transport, blob, nameOf(source, options), options);
  return post<Document>(transport, "/v1/documents", source, blob, options);
}

/** Uploads an archive whose files become a document each, in one request however large it is. */
export async function uploadArchive(transport: Transport, source: Source, options: ArchiveOptions): Promise<UploadedArchive> {
  return post<UploadedArchive>(transport, "/v1/documents/archive", source, await bufferedIn(source), options);
}

function nameOf(source: Source, { filename }: ArchiveOptions): string | undefined {
  return filename ?? (source instanceof Blob && "name" in source ? String(source.name) : undefined);
}

/** The source as a Blob; null for a stream that is sent while it is read. */
async function bufferedIn(source: Source): Promise<Blob | null> {
  return blobOf(source) ?? (browser ? await collect(source as AsyncIterable<Uint8Array | string>) : null);
}

async function post<T>(transport: Transport, path: string, source: Source, blob: Blob | null, options: UploadOptions): Promise<T> {
  const call: Call = {
    method: "POST",
    path,
    query: { filename: nameOf(source, options), ocr_language: options.ocrLanguage, reuse: options.reuse },
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
  return watchConversion(transport, call, options, () => transport.upload<T>(call, send, blob !== null));
}
