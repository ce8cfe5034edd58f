/** What the server has: documents, being uploaded, being read and read; sessions; the model. */
import { signal } from "@preact/signals";
import type { Document, Formats, List, Model, Session } from "everlong-client";
import { APIConnectionError, EverlongError, NotFoundError, RateLimitError, newIdempotencyKey } from "everlong-client";
import { go, place } from "./route.js";
import { alive, client, surely } from "./server.js";

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
/** What can be uploaded. */
export const formats = signal<Formats | null>(null);
/** The id behind which the server has more of each; null: there is no more. */
export const more = signal<{ documents: string | null; sessions: string | null }>({ documents: null, sessions: null });
/** What went wrong last, for people; null when they have seen it. */
export const trouble = signal<string | null>(null);

/** What one request lists: as much as the server gives. */
const MOST = 100;
/** How many files are sent at once: a browser has six connections to one server, and the rest of the page needs some. */
const LANES = 3;
/** Sessions that are waited for. */
const followed = new Set<string>();
/** Documents that the server says it does not have. */
const deleted = new Set<string>();

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
  const [models, readable, read, talks] = await surely(() =>
    Promise.all([client.models(), client.documents.formats(), client.documents.list({ limit: MOST }), client.sessions.list({ limit: MOST })]),
  );
  model.value = models[0] ?? null;
  formats.value = readable;
  const listed = new Map(read.data.map((document) => [document.id, document]));
  const last = read.has_more ? read.data.at(-1) : undefined;
  // What is known from behind the list's end stays: it was asked for by its id, or as one of the next page.
  if (last) for (const old of documents.value.values()) if (old.created_at <= last.created_at && !listed.has(old.id)) listed.set(old.id, old);
  documents.value = listed;
  sessions.value = talks.data;
  more.value = { documents: behind(read), sessions: behind(talks) };
  loaded.value = true;
  void watch();
  for (const session of talks.data) void awaited(session);
}

function behind(page: List<{ id: string }>): string | null {
  return page.has_more ? (page.data.at(-1)?.id ?? null) : null;
}

/** The next page of what the server has. */
export async function older(kind: "documents" | "sessions"): Promise<void> {
  const after = more.value[kind];
  if (after === null) return;
  try {
    if (kind === "documents") {
      const page = await surely(() => client.documents.list({ limit: MOST, after }));
      const known = documents.value;
      const fresh = page.data.filter(({ id }) => !known.has(id));
      documents.value = new Map([...known, ...fresh.map((each) => [each.id, each] as const)]);
      more.value = { ...more.value, documents: behind(page) };
      void watch();
      if (fresh.length === 0) await older(kind); // all of it was known
    } else {
      const page = await surely(() => client.sessions.list({ limit: MOST, after }));
      const known = new Set(sessions.value.map(({ id }) => id));
      sessions.value = [...sessions.value, ...page.data.filter(({ id }) => !known.has(id))];
      more.value = { ...more.value, sessions: behind(page) };
      for (const session of page.data) void awaited(session);
    }
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    await refresh(); // where the list went on was deleted elsewhere
  }
}

function seen(document: Document): void {
  const known = documents.value.has(document.id);
  documents.value = known ? new Map(documents.value).set(document.id, document) : new Map([[document.id, document], ...documents.value]);
}

export function heard(session: Session): void {
  const known = sessions.value.some(({ id }) => id === session.id);
  sessions.value = known ? sessions.value.map((old) => (old.id === session.id ? session : old)) : [session, ...sessions.value];
}

function unread(): string[] {
  return [...documents.value.values()].filter(({ status }) => status !== "ready" && status !== "failed").map(({ id }) => id);
}

let watching = false;
/** Seconds until the documents are looked at again. */
let pace = 0;

/**
 * Keeps the documents that are being read up to date, until there are none. They are asked for together: a stream for each
 * would take all connections that a browser has to one server, and the page could ask for nothing else.
 */
async function watch(): Promise<void> {
  pace = 0.1;
  if (watching) return;
  watching = true;
  try {
    while (unread().length > 0) {
      await new Promise((resolve) => setTimeout(resolve, pace * 1000));
      pace = Math.min(2 * pace, 2);
      await surely(renew).catch((error: unknown) => {
        if (!(error instanceof RateLimitError)) throw error;
        pace = error.retryAfter ?? 8;
      });
    }
  } catch (error) {
    trouble.value = words(error);
  } finally {
    watching = false;
  }
}

async function renew(): Promise<void> {
  const listed = new Map((await client.documents.list({ limit: MOST })).data.map((document) => [document.id, document]));
  for (const id of unread()) {
    const now = listed.get(id) ?? (await got(id));
    if (now && documents.value.has(id)) seen(now);
  }
}

/** The document as the server has it; null: it has none of this id. */
async function got(id: string): Promise<Document | null> {
  try {
    return await client.documents.get(id);
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    forget(id);
    return null;
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
  deleted.add(document);
  documents.value = new Map([...documents.value].filter(([id]) => id !== document));
}

/** A document that the list may not have: deleted, or one of many. */
export async function find(id: string): Promise<void> {
  if (documents.value.has(id)) return;
  try {
    const document = await surely(() => got(id));
    if (document) documents.value = new Map([...documents.value, [id, document]]);
    void watch();
  } catch {
    // It stays one of which nothing is known.
  }
}

/** A session that the list does not have yet: one of many. False: there is none. */
export async function findSession(id: string): Promise<boolean> {
  try {
    const session = await surely(() => client.sessions.get(id));
    if (!sessions.value.some((each) => each.id === id)) sessions.value = [...sessions.value, session];
    void awaited(session);
    return true;
  } catch (error) {
    if (error instanceof NotFoundError) return false;
    throw error;
  }
}

let uploaded = 0;

/** Takes an upload from the list. */
export function drop(key: number): void {
  uploads.value = uploads.value.filter((upload) => upload.key !== key);
}

let lanes = LANES;
const queue: (() => void)[] = [];

/** What `work` gives, when fewer than `LANES` others are being done. */
async function inLane<T>(work: () => Promise<T>): Promise<T> {
  if (lanes > 0) lanes--;
  else await new Promise<void>((free) => queue.push(free));
  try {
    return await work();
  } finally {
    const free = queue.shift();
    if (free) free();
    else lanes++;
  }
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
          idempotencyKey: newIdempotencyKey(),
          state: {}, // what is there already is not sent again
          onProgress: (sent: number) => {
            alive();
            update({ sent });
          },
        };
        const document = await inLane(() =>
          surely(() =>
            client.documents.upload(file, options).catch(async (error: unknown) => {
              // A browser says of a file that it cannot read (any more) what it says of a server that is away.
              if (error instanceof APIConnectionError && !(await readable(file))) throw new EverlongError("this file cannot be read (any more)");
              throw error;
            }),
          ),
        );
        seen(document);
        void watch();
        taken.push(document.id);
        drop(key);
      } catch (error) {
        update({ error: words(error) });
      }
    }),
  );
  if (taken.length) await begin(taken, () => place.value.session === null);
}

async function readable(file: File): Promise<boolean> {
  return file.slice(0, 1).arrayBuffer().then(
    () => true,
    () => false,
  );
}

/** A conversation about documents, which is gone to if the person would then. */
export async function begin(ids: readonly string[], wanted: () => boolean = () => true): Promise<void> {
  const again = { idempotencyKey: newIdempotencyKey() };
  const session = await surely(() => client.sessions.create([...ids], again));
  heard(session);
  void awaited(session);
  if (wanted()) go({ session: session.id, panel: null });
}

export async function fork(id: string): Promise<void> {
  const again = { idempotencyKey: newIdempotencyKey() };
  const session = await surely(() => client.sessions.fork(id, again));
  heard(session);
  go({ session: session.id, panel: null });
}

export async function rename(id: string, title: string): Promise<void> {
  heard(await surely(() => client.sessions.rename(id, title)));
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
  if (!document) return deleted.has(id) ? "a deleted document" : "a document";
  return document.filename ?? `Text of ${new Date(document.created_at * 1000).toLocaleDateString()}`;
}

export function titleOf(session: Session): string {
  return session.title ?? documentsOf(session);
}

/** The names of what it is about. */
export function documentsOf(session: Session): string {
  const names = session.documents.map(nameOf);
  if (names.length === 0) return "No document";
  return names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(" and ");
}
