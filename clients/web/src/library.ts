/** What the server has: documents, being uploaded, being read and read; sessions; the model. */
import { signal } from "@preact/signals";
import type { Document, Model, Session } from "everlong-client";
import { EverlongError, NotFoundError, newKey } from "everlong-client";
import { go, place } from "./route.js";
import { client, surely } from "./server.js";

export interface Upload {
  key: number;
  name: string;
  size: number;
  sent: number;
  error: string | null;
}

export const model = signal<Model | null>(null);
export const documents = signal<ReadonlyMap<string, Document>>(new Map());
export const sessions = signal<readonly Session[]>([]);
export const uploads = signal<readonly Upload[]>([]);
export const loaded = signal(false);
/** What went wrong last, for people; null when they have seen it. */
export const trouble = signal<string | null>(null);

const MOST = 100;
const followed = new Set<string>();

export function words(error: unknown): string {
  if (error instanceof EverlongError) return error.message;
  return `This page failed: ${String((error as Error)?.message ?? error)}`;
}

/** Runs `work`; what goes wrong is shown. */
export async function attempt(work: () => Promise<unknown>): Promise<void> {
  try {
    await work();
  } catch (error) {
    trouble.value = words(error);
  }
}

/** Everything, as the server has it now. */
export async function refresh(): Promise<void> {
  const [models, read, talks] = await surely(() =>
    Promise.all([client.models(), client.documents.list({ limit: MOST }), client.sessions.list({ limit: MOST })]),
  );
  model.value = models[0] ?? null;
  documents.value = new Map(read.data.map((document) => [document.id, document]));
  sessions.value = talks.data;
  loaded.value = true;
  for (const document of read.data) void follow(document);
  for (const session of talks.data) void awaited(session);
}

function seen(document: Document): void {
  const known = documents.value.has(document.id);
  documents.value = known ? new Map(documents.value).set(document.id, document) : new Map([[document.id, document], ...documents.value]);
}

export function heard(session: Session): void {
  const known = sessions.value.some(({ id }) => id === session.id);
  sessions.value = known ? sessions.value.map((old) => (old.id === session.id ? session : old)) : [session, ...sessions.value];
}

/** Keeps a document that is being read up to date. */
async function follow(document: Document): Promise<void> {
  if (document.status === "ready" || document.status === "failed" || followed.has(document.id)) return;
  followed.add(document.id);
  try {
    await surely(async () => {
      for await (const now of client.documents.follow(document.id)) seen(now);
    });
  } catch (error) {
    if (error instanceof NotFoundError) forget(document.id);
    else trouble.value = words(error);
  } finally {
    followed.delete(document.id);
  }
}

/** Keeps a session that still reads up to date. */
async function awaited(session: Session): Promise<void> {
  if (session.status !== "reading" || followed.has(session.id)) return;
  followed.add(session.id);
  try {
    await surely(() => client.sessions.wait(session.id));
  } catch {
    // Its last state says why.
  } finally {
    followed.delete(session.id);
  }
  try {
    heard(await surely(() => client.sessions.get(session.id)));
  } catch {
    sessions.value = sessions.value.filter(({ id }) => id !== session.id);
  }
}

function forget(document: string): void {
  documents.value = new Map([...documents.value].filter(([id]) => id !== document));
}

/** A document that the list may not have: deleted, or one of many. */
export async function find(id: string): Promise<void> {
  if (documents.value.has(id)) return;
  try {
    const document = await surely(() => client.documents.get(id));
    documents.value = new Map([...documents.value, [id, document]]);
    void follow(document);
  } catch {
    // Deleted: its id has to do.
  }
}

let uploaded = 0;

/** Takes an upload from the list. */
export function drop(key: number): void {
  uploads.value = uploads.value.filter((upload) => upload.key !== key);
}

/** Uploads files, and begins a conversation about those that could be. */
export async function take(files: readonly File[]): Promise<void> {
  const taken: string[] = [];
  if (files.length) go({ session: null, panel: null });
  await Promise.all(
    files.map(async (file) => {
      const key = ++uploaded;
      const update = (change: Partial<Upload>) => {
        uploads.value = uploads.value.map((upload) => (upload.key === key ? { ...upload, ...change } : upload));
      };
      const others = uploads.value.filter((upload) => upload.error === null || upload.name !== file.name);
      uploads.value = [...others, { key, name: file.name, size: file.size, sent: 0, error: null }];
      try {
        const options = {
          filename: file.name.slice(-255),
          // The server looks into it: what a browser makes of a name is a guess.
          contentType: "application/octet-stream",
          idempotencyKey: newKey(),
          onProgress: (sent: number) => update({ sent }),
        };
        const document = await surely(() => client.documents.upload(file, options));
        seen(document);
        void follow(document);
        taken.push(document.id);
        drop(key);
      } catch (error) {
        update({ error: words(error) });
      }
    }),
  );
  if (taken.length) await begin(taken);
}

/** A conversation about documents. */
export async function begin(ids: readonly string[]): Promise<void> {
  const again = { idempotencyKey: newKey() };
  const session = await surely(() => client.sessions.create([...ids], again));
  heard(session);
  void awaited(session);
  go({ session: session.id, panel: null });
}

export async function fork(id: string): Promise<void> {
  const again = { idempotencyKey: newKey() };
  const session = await surely(() => client.sessions.fork(id, again));
  heard(session);
  go({ session: session.id, panel: null });
}

export async function removeSession(id: string): Promise<void> {
  await surely(() => client.sessions.delete(id));
  sessions.value = sessions.value.filter((session) => session.id !== id);
  if (place.value.session === id) go({ session: null, panel: null });
}

export async function removeDocument(id: string): Promise<void> {
  await surely(() => client.documents.delete(id));
  forget(id);
  const { panel } = place.value;
  if (panel?.kind === "text" && panel.document === id) go({ panel: null });
}

/** A document's name for people. */
export function nameOf(id: string): string {
  const document = documents.value.get(id);
  return document ? (document.filename ?? `Text of ${new Date(document.created_at * 1000).toLocaleDateString()}`) : "a deleted document";
}

export function titleOf(session: Session): string {
  const names = session.documents.map(nameOf);
  if (names.length === 0) return "No document";
  return names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(" and ");
}
