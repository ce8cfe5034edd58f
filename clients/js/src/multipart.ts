/** Uploads of large files in parts, through `/v1/uploads`: a lost connection costs one part, not the whole file. */
import { sender } from "./body.js";
import { watchConversion } from "./conversion-progress.js";
import { NotFoundError, UnexpectedAnswerError } from "./errors.js";
import { newIdempotencyKey } from "./retry.js";
import { type Call, type Transport, path } from "./transport.js";
import type { Document, Upload, UploadOptions, UploadState } from "./types.js";

/** The default size of a part, in bytes. */
export const PART = 8 * 1024 * 1024;

/** Uploads `blob`, resuming from `options.state`. Starts again if the server no longer has that upload. */
export async function uploadInParts(transport: Transport, blob: Blob, filename: string | undefined, options: UploadOptions): Promise<Document> {
  const state = options.state ?? {};
  const resumed = state.upload !== undefined;
  try {
    return await resumeUpload(transport, blob, filename, options, state);
  } catch (error) {
    if (!resumed || !(error instanceof NotFoundError)) throw error;
    delete state.upload; // the upload has expired
    return resumeUpload(transport, blob, filename, options, state);
  }
}

async function resumeUpload(transport: Transport, blob: Blob, filename: string | undefined, options: UploadOptions, state: UploadState): Promise<Document> {
  const { signal, onProgress } = options;
  const post = <T>(json: object, ...to: string[]) => transport.json<T>({ method: "POST", path: path("uploads", ...to), json, signal });
  if (state.upload === undefined) {
    const fields = { bytes: blob.size, filename: filename ?? "text", mime_type: options.contentType ?? blob.type, purpose: "user_data" };
    state.partSize = options.partSize ?? PART;
    state.parts = [];
    state.upload = (await post<Upload>(fields)).id;
  }
  const { upload, parts = (state.parts = []), partSize = PART } = state;
  let sent = Math.min(parts.length * partSize, blob.size);
  onProgress?.(sent, blob.size);
  while (sent < blob.size) {
    const part = blob.slice(sent, sent + partSize);
    const body = new FormData();
    body.append("data", part);
    const before = sent;
    // Does not count the bytes of the form around the part.
    const progress = onProgress && ((bytes: number) => onProgress(before + Math.min(bytes, part.size), blob.size));
    const call = { method: "POST", path: path("uploads", upload, "parts"), signal } as const;
    parts.push((await transport.upload<{ id: string }>(call, sender(transport, body, progress, signal), true)).id);
    sent += part.size;
    onProgress?.(sent, blob.size);
  }
  const complete: Call = { method: "POST", path: path("uploads", upload, "complete"), json: { part_ids: parts, ocr_language: options.ocrLanguage }, query: { reuse: options.reuse }, signal, idempotencyKey: newIdempotencyKey() };
  const { file } = await watchConversion(transport, complete, options, () => transport.json<Upload>(complete));
  if (!file) throw new UnexpectedAnswerError("the document was deleted right after the upload");
  return transport.json({ method: "GET", path: path("documents", file.id), signal });
}
