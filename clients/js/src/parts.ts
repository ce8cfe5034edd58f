/** Files larger than a part go through `/v1/uploads`: a lost connection costs a part, not the file. */
import { NotFoundError, UnexpectedAnswerError } from "./errors.js";
import { type Transport, path } from "./transport.js";
import type { Document, Upload } from "./types.js";
import { type UploadOptions, sender } from "./upload.js";

/** Bytes of a part, unless the caller says otherwise. */
export const PART = 8 * 1024 * 1024;

/** How far an upload in parts has come: what one call of `upload` has filled in, another one goes on with. It is JSON. */
export interface Begun {
  upload?: string;
  /** The parts that the server has, in their order, each of so many bytes. */
  parts?: string[];
  partSize?: number;
}

/** Uploads `blob` from where `options.begun` says that it stands; one that the server has no more is begun anew. */
export async function uploadInParts(transport: Transport, blob: Blob, filename: string | undefined, options: UploadOptions): Promise<Document> {
  const begun = options.begun ?? {};
  const resumed = begun.upload !== undefined;
  try {
    return await goOn(transport, blob, filename, options, begun);
  } catch (error) {
    if (!resumed || !(error instanceof NotFoundError)) throw error;
    delete begun.upload; // it has expired
    return goOn(transport, blob, filename, options, begun);
  }
}

async function goOn(transport: Transport, blob: Blob, filename: string | undefined, options: UploadOptions, begun: Begun): Promise<Document> {
  const { signal, onProgress } = options;
  const post = <T>(json: object, ...to: string[]) => transport.json<T>({ method: "POST", path: path("uploads", ...to), json, signal });
  if (begun.upload === undefined) {
    const facts = { bytes: blob.size, filename: filename ?? "text", mime_type: options.contentType ?? blob.type, purpose: "user_data" };
    begun.partSize = options.partSize ?? PART;
    begun.parts = [];
    begun.upload = (await post<Upload>(facts)).id;
  }
  const { upload, parts = (begun.parts = []), partSize = PART } = begun;
  let sent = Math.min(parts.length * partSize, blob.size);
  onProgress?.(sent, blob.size);
  while (sent < blob.size) {
    const part = blob.slice(sent, sent + partSize);
    const body = new FormData();
    body.append("data", part);
    const before = sent;
    // The form around it counts as nothing.
    const progress = onProgress && ((bytes: number) => onProgress(before + Math.min(bytes, part.size), blob.size));
    const call = { method: "POST", path: path("uploads", upload, "parts"), signal } as const;
    parts.push((await transport.upload<{ id: string }>(call, sender(transport, body, progress, signal), true)).id);
    sent += part.size;
    onProgress?.(sent, blob.size);
  }
  const { file } = await post<Upload>({ part_ids: parts }, upload, "complete");
  if (!file) throw new UnexpectedAnswerError("the document was deleted as soon as it was there");
  return transport.json({ method: "GET", path: path("documents", file.id), signal });
}
