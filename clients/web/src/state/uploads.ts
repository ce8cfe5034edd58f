/** Uploads of files, several at once. */
import { signal } from "@preact/signals";
import { APIConnectionError, type Document, EverlongError, newIdempotencyKey } from "everlong-client";
import { GivenUp, Pausable } from "../lib/pausable.js";
import { createSession, errorText, fetchDocument, pollPending, updateDocument } from "./library.js";
import { navigate, route } from "./route.js";
import { client, markAlive, retryWhileOffline } from "./server.js";
import { persistent } from "./storage.js";

export interface Upload {
  key: number;
  name: string;
  size: number;
  sent: number;
  /** The page that the server takes the text out of, and the number of pages. */
  page: readonly [number, number] | null;
  /** queued: it waits for other uploads. */
  state: "queued" | "sending" | "paused" | "failed";
  error: string | null;
  /** The conversation that shows it after it failed; null for the start view. */
  place: string | null;
}

export const uploads = signal<readonly Upload[]>([]);

/** The number of concurrent uploads. A browser opens six connections to one server, and the page needs some of them. */
const MAX_UPLOADS = 3;
/** Larger files are not digested, as that would need their size in memory. */
const MAX_DIGESTED = 64 * 1024 ** 2; // bytes
/** The browser stores the id of the document that it made from a file under this prefix and the file's digest. */
const KNOWN = "everlong.document.";

let uploadCount = 0;

const controls = new Map<number, Pausable>();

function update(key: number, change: Partial<Upload>): void {
  uploads.value = uploads.value.map((upload) => (upload.key === key ? { ...upload, ...change } : upload));
}

/** Removes an upload from the list, and ends it if it is not complete. What the server has of it expires. */
export function dismissUpload(key: number): void {
  uploads.value = uploads.value.filter((upload) => upload.key !== key);
  controls.get(key)?.giveUp();
}

export function pauseUpload(key: number): void {
  update(key, { state: "paused" });
  controls.get(key)?.pause();
}

/** Continues a paused upload after the last part that the server has. */
export function resumeUpload(key: number): void {
  update(key, { state: "queued" });
  controls.get(key)?.resume();
}

let freeUploadSlots = MAX_UPLOADS;
const waitingUploads: (() => void)[] = [];

/** Runs `work` as soon as fewer than `MAX_UPLOADS` others are running. */
async function withUploadSlot<T>(work: () => Promise<T>): Promise<T> {
  if (freeUploadSlots > 0) freeUploadSlots--;
  else await new Promise<void>((free) => waitingUploads.push(free));
  try {
    return await work();
  } finally {
    const free = waitingUploads.shift();
    if (free) free();
    else freeUploadSlots++;
  }
}

/** Uploads files, and creates a conversation about those that the server accepted. */
export async function uploadFiles(files: readonly File[]): Promise<void> {
  if (files.length) navigate({ session: null, panel: null });
  const documentIds = await uploadAll(files, null);
  if (documentIds.length === 0) return;
  const opened = await createSession(documentIds, () => route.value.session === null);
  if (opened) moveFailed(null, opened);
}

/** Shows the failed uploads of one conversation in another one, which the files that did not fail have. */
export function moveFailed(from: string | null, to: string): void {
  uploads.value = uploads.value.map((upload) => (upload.state === "failed" && upload.place === from ? { ...upload, place: to } : upload));
}

/** Uploads files, and returns the ids of the documents that the server accepted. The conversation `place` shows those that failed. */
export async function uploadAll(files: readonly File[], place: string | null): Promise<string[]> {
  const documentIds = await Promise.all(
    files.map(async (file) => {
      const key = ++uploadCount;
      const control = new Pausable();
      controls.set(key, control);
      const others = uploads.value.filter((upload) => upload.error === null || upload.name !== file.name);
      uploads.value = [...others, { key, name: file.name, size: file.size, sent: 0, page: null, state: "queued", error: null, place }];
      try {
        const document = await documentOf(file, key, control);
        updateDocument(document);
        void pollPending();
        dismissUpload(key);
        return document.id;
      } catch (error) {
        if (!(error instanceof GivenUp)) update(key, { state: "failed", error: errorText(error) });
        return null;
      } finally {
        controls.delete(key);
      }
    }),
  );
  return [...new Set(documentIds.filter((id) => id !== null))];
}

/** The documents of files that are being sent, by their digests. */
const sending = new Map<string, Promise<Document>>();

/** Returns the document of a file. Sends the file, unless this browser has sent the same bytes before. */
async function documentOf(file: File, key: number, control: Pausable): Promise<Document> {
  const digest = await digestOf(file);
  if (digest === null) return send(file, key, control);
  const found = (await known(digest)) ?? sending.get(digest); // without a pause before the entry is set
  if (found) return found;
  const sent = send(file, key, control);
  sending.set(digest, sent);
  try {
    persistent.set(KNOWN + digest, (await sent).id);
    return await sent;
  } finally {
    sending.delete(digest);
  }
}

function send(file: File, key: number, control: Pausable): Promise<Document> {
  const options = {
    filename: file.name.slice(-255),
    // Lets the server detect the format: a browser guesses it from the name.
    contentType: "application/octet-stream",
    idempotencyKey: newIdempotencyKey(),
    state: {}, // lets a repeated upload resume
    onProgress: (sent: number) => {
      markAlive();
      update(key, { sent });
    },
    onConversion: (page: number, pages: number) => {
      markAlive();
      update(key, { page: [page, pages] });
    },
  };
  const upload = (signal: AbortSignal) =>
    client.documents.upload(file, { ...options, signal }).catch(async (error: unknown) => {
      // A browser reports an unreadable file with the same error as an unreachable server.
      if (error instanceof APIConnectionError && !(await readable(file))) throw new EverlongError("The browser cannot read this file. Choose it again.");
      throw error;
    });
  return control.run((signal) =>
    withUploadSlot(() => {
      signal.throwIfAborted(); // it was paused while it waited
      update(key, { state: "sending" });
      return retryWhileOffline(() => upload(signal));
    }),
  );
}

/** The SHA-256 of a file; null if it is large, and where browsers do not compute it, as on pages without TLS. */
async function digestOf(file: File): Promise<string | null> {
  if (file.size > MAX_DIGESTED || !globalThis.crypto?.subtle) return null;
  try {
    const digest = await crypto.subtle.digest("SHA-256", await file.arrayBuffer());
    return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  } catch {
    return null; // the upload says why the file cannot be read
  }
}

/** Returns the document that this browser made from the same bytes, if the server still has it and could read it. */
async function known(digest: string): Promise<Document | null> {
  const id = persistent.get(KNOWN + digest);
  const document = id && (await retryWhileOffline(() => fetchDocument(id)));
  return document && document.status !== "failed" ? document : null;
}

async function readable(file: File): Promise<boolean> {
  return file.slice(0, 1).arrayBuffer().then(
    () => true,
    () => false,
  );
}
