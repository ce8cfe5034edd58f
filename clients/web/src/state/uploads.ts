/** Uploads of files, several at once. */
import { signal } from "@preact/signals";
import { APIConnectionError, type Document, type DocumentNote, newIdempotencyKey } from "everlong-client";
import { size } from "../lib/format.js";
import { formatNames, isArchive } from "../lib/formats.js";
import { GivenUp, Pausable } from "../lib/pausable.js";
import { askEachFile } from "./archives.js";
import { type UploadProblem, UserError, uploadProblem } from "./errors.js";
import { createSession, formats, nameOf, pollPending, showErrors, updateDocument } from "./library.js";
import { navigate, route } from "./route.js";
import { client, markAlive, retryWhileOffline } from "./server.js";

export interface Upload {
  key: number;
  file: File;
  /** Whether the file is an archive whose files become a document each. */
  each: boolean;
  sent: number;
  /** The page that the server takes the text out of, and the number of pages. */
  page: readonly [number, number] | null;
  /** queued: it waits for other uploads. */
  state: "queued" | "sending" | "paused" | "failed" | "done";
  error: UploadProblem | null;
  /** The files of an archive that were left out, and why. */
  notes: readonly DocumentNote[];
  /** The name of the document that was made of the same file before, if it differs. */
  sameAs: string | null;
  /** The conversation that shows it after it has ended; null for the start view. */
  place: string | null;
}

export const uploads = signal<readonly Upload[]>([]);

/** The number of concurrent uploads. A browser opens six connections to one server, and the page needs some of them. */
const MAX_UPLOADS = 3;

let uploadCount = 0;

const controls = new Map<number, Pausable>();

function update(key: number, change: Partial<Upload>): void {
  uploads.value = uploads.value.map((upload) => (upload.key === key ? { ...upload, ...change } : upload));
}

/** For each upload that has not ended: a function that ends it on the page while the server still converts its file. */
const leaves = new Map<number, () => void>();

/** Removes an upload from the list, and ends it if it has not ended. What the server has of an incomplete upload expires. */
export function dismissUpload(key: number): void {
  const upload = uploads.value.find((each) => each.key === key);
  uploads.value = uploads.value.filter((each) => each.key !== key);
  if (upload && isSent(upload)) leaves.get(key)?.();
  else controls.get(key)?.giveUp();
}

/**
 * Lists the documents of a cancelled upload when the server has made them: it cannot stop a conversion. Deletes none: somebody else may have uploaded
 * the same file meanwhile, and then the server returns that document.
 */
async function listLater(sending: Promise<Stored>): Promise<void> {
  const { data } = await sending;
  data.forEach(updateDocument);
}

/** Removes the uploads that failed from a conversation. */
export function dismissFailed(session: string): void {
  for (const { key, state, place } of uploads.value) if (state === "failed" && place === session) dismissUpload(key);
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

// A closed tab ends its uploads: lets the browser ask the user first.
addEventListener("beforeunload", (event) => {
  if (!uploads.value.every(hasEnded)) event.preventDefault();
});

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
  await openConversation(await uploadAll(files, null));
}

/** Creates a conversation about documents, and opens it if the start view is still shown. */
export async function openConversation(documentIds: readonly string[]): Promise<void> {
  if (documentIds.length === 0) return;
  const opened = await createSession(documentIds, () => route.value.session === null);
  if (opened) moveEnded(null, opened);
}

/** Shows the uploads of one conversation that have ended in another one, which the files that did not fail have. */
export function moveEnded(from: string | null, to: string): void {
  uploads.value = uploads.value.map((upload) => (hasEnded(upload) && upload.place === from ? { ...upload, place: to } : upload));
}

export function hasEnded({ state }: Upload): boolean {
  return state === "failed" || state === "done";
}

/** Whether the server has the whole file. */
export function isSent({ file, sent, page }: Upload): boolean {
  return page !== null || sent >= file.size;
}

/**
 * Uploads files, and returns the ids of the documents that the server accepted. The conversation `place` shows those that failed.
 * Asks what becomes of archives.
 */
export async function uploadAll(files: readonly File[], place: string | null): Promise<string[]> {
  const archives = files.filter(({ name }) => isArchive(name)).map(({ name }) => name);
  const each = archives.length > 0 ? await askEachFile(archives) : false;
  const chosen = each === null ? files.filter(({ name }) => !isArchive(name)) : files;
  const documentIds = await Promise.all(chosen.map((file) => uploadOne(file, (each ?? false) && isArchive(file.name), place)));
  return [...new Set(documentIds.flat())];
}

/** Uploads a file that failed once more. Returns the ids of its documents. */
export function uploadAgain({ key, file, each, place }: Upload): Promise<string[]> {
  dismissUpload(key);
  return uploadOne(file, each, place);
}

async function uploadOne(file: File, each: boolean, place: string | null): Promise<string[]> {
  const key = ++uploadCount;
  const control = new Pausable();
  controls.set(key, control);
  const others = uploads.value.filter((upload) => !hasEnded(upload) || upload.file.name !== file.name);
  uploads.value = [...others, { key, file, each, sent: 0, page: null, state: "queued", error: null, notes: [], sameAs: null, place }];
  try {
    const sending = send(file, each, key, control);
    const stored = await Promise.race([sending, new Promise<null>((leave) => leaves.set(key, () => leave(null)))]);
    if (!stored) {
      void showErrors(() => listLater(sending));
      return [];
    }
    const { data, notes } = stored;
    data.forEach(updateDocument);
    const [first] = each ? [] : data;
    const sameAs = first && (first.filename ?? "") !== sentName(file) ? nameOf(first.id) : null;
    void pollPending();
    if (notes.length || sameAs !== null) update(key, { state: "done", notes, sameAs });
    else dismissUpload(key);
    return data.map(({ id }) => id);
  } catch (error) {
    const accepted = formats.value;
    const problem = uploadProblem(error, accepted ? formatNames(accepted).replace(/^Text/, "text") : "text", accepted ? size(accepted.max_bytes) : "its limit");
    if (!(error instanceof GivenUp)) update(key, { state: "failed", error: problem });
    return [];
  } finally {
    controls.delete(key);
    leaves.delete(key);
  }
}

/** The documents of one file, and the files that were left out if it is an archive. */
interface Stored {
  data: readonly Document[];
  notes: readonly DocumentNote[];
}

/** The name as the server stores it: without a path, and with at most 255 characters. */
function sentName({ name }: File): string {
  const last = name.normalize("NFC").split(/[/\\]/).at(-1)!;
  return [...last].slice(-255).join("").trim();
}

/** Sends a file. The server stores the same bytes only once. */
function send(file: File, each: boolean, key: number, control: Pausable): Promise<Stored> {
  const options = {
    filename: sentName(file),
    // Lets the server detect the format: a browser guesses it from the name.
    contentType: "application/octet-stream",
    idempotencyKey: newIdempotencyKey(),
    onProgress: (sent: number) => {
      markAlive();
      update(key, { sent });
    },
    onConversion: (page: number, pages: number) => {
      markAlive();
      update(key, { page: [page, pages] });
    },
  };
  const state = {}; // lets a repeated upload resume
  const post = async (signal: AbortSignal): Promise<Stored> =>
    each
      ? client.documents.uploadArchive(file, { ...options, signal })
      : { data: [await client.documents.upload(file, { ...options, reuse: true, state, signal })], notes: [] };
  const upload = (signal: AbortSignal) =>
    post(signal).catch(async (error: unknown) => {
      // A browser reports an unreadable file with the same error as an unreachable server.
      if (error instanceof APIConnectionError && !(await readable(file))) throw new UserError("The browser cannot read this file. Choose it again.");
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

async function readable(file: File): Promise<boolean> {
  return file.slice(0, 1).arrayBuffer().then(
    () => true,
    () => false,
  );
}
