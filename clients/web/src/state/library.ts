/** The documents, uploads, sessions and model that the page shows. */
import { batch, computed, signal } from "@preact/signals";
import type { Document, Formats, List, Model, Session } from "everlong-client";
import { NotFoundError, RateLimitError, newIdempotencyKey } from "everlong-client";
import { errorText } from "./errors.js";
import { forgetSession } from "./questions.js";
import { navigate, route } from "./route.js";
import { client, retryWhileOffline } from "./server.js";
import { answerSettings } from "./settings.js";

/** The models of the server, loaded or not. */
export const models = signal<readonly Model[]>([]);
/** The first of them, which is always loaded, and whose properties the page describes. */
export const model = computed(() => models.value[0] ?? null);
/** Whether the server knows what was added after version 0.1.0, such as the search for conversations. During an upgrade, the page may be newer. */
export const upgraded = computed(() => model.value?.recall_passages != null);
export const documents = signal<ReadonlyMap<string, Document>>(new Map());
export const sessions = signal<readonly Session[]>([]);
export const loaded = signal(false);
/** The formats that can be uploaded. */
export const formats = signal<Formats | null>(null);
/** For each list, the id after which its next page starts; null at the end. */
export const nextPages = signal<{ documents: string | null; sessions: string | null }>({ documents: null, sessions: null });
/** The message of the last error; null after the user dismissed it. */
export const lastError = signal<string | null>(null);

/** The number of items in one page of a list: the server's maximum. */
const PAGE_SIZE = 100;
/** The ids of sessions for which `followSession` is running. */
const followedSessions = new Set<string>();
/** Milliseconds until a session that is being answered is fetched again. */
const ANSWER_DELAY = 2000;
/** The ids of documents that no longer exist. */
const deletedDocuments = new Set<string>();

/** Runs `work`, and shows its error if it fails. */
export async function showErrors(work: () => Promise<unknown>): Promise<void> {
  try {
    await work();
  } catch (error) {
    lastError.value = errorText(error);
  }
}

/** Loads the model, the formats, and the first page of documents and sessions. */
export async function refresh(): Promise<void> {
  const before = new Set([...documents.value.keys(), ...sessions.value.map(({ id }) => id)]);
  const [served, formatList, documentPage, sessionPage] = await retryWhileOffline(() =>
    Promise.all([client.models(), client.documents.formats(), client.documents.list({ limit: PAGE_SIZE }), client.sessions.list({ limit: PAGE_SIZE })]),
  );
  models.value = served;
  formats.value = formatList;
  documents.value = new Map(merged(documentPage, [...documents.value.values()], before).map((document) => [document.id, document]));
  sessions.value = merged(sessionPage, sessions.value, before);
  nextPages.value = { documents: nextCursor(documentPage), sessions: nextCursor(sessionPage) };
  loaded.value = true;
  void pollPending();
  for (const session of sessionPage.data) void followSession(session);
}

/**
 * The first page of a list, and the known items that are older: those loaded by their id, by a search or with a later page. `before`:
 * the ids that were known when the page was requested; what has been added or removed here since then has been added or removed.
 */
function merged<T extends { id: string; created_at: number }>(page: List<T>, known: readonly T[], before: ReadonlySet<string>): T[] {
  const listed = new Set(page.data.map(({ id }) => id));
  const here = new Set(known.map(({ id }) => id));
  const last = page.has_more ? page.data.at(-1) : undefined;
  const others = known.filter(({ id }) => !listed.has(id));
  return [
    ...others.filter(({ id }) => !before.has(id)),
    ...page.data.filter(({ id }) => here.has(id) || !before.has(id)),
    ...others.filter(({ id, created_at }) => before.has(id) && last && created_at <= last.created_at),
  ];
}

function nextCursor(page: List<{ id: string }>): string | null {
  return page.has_more ? (page.data.at(-1)?.id ?? null) : null;
}

/** Loads the next page of a list that has items not known yet. */
export async function loadMore(kind: "documents" | "sessions"): Promise<void> {
  const after = nextPages.value[kind];
  if (after === null) return;
  try {
    if (kind === "documents") {
      const page = await retryWhileOffline(() => client.documents.list({ limit: PAGE_SIZE, after }));
      const known = documents.value;
      const fresh = page.data.filter(({ id }) => !known.has(id));
      documents.value = new Map([...known, ...fresh.map((each) => [each.id, each] as const)]);
      nextPages.value = { ...nextPages.value, documents: nextCursor(page) };
      void pollPending();
      if (fresh.length === 0) await loadMore(kind); // the whole page was known already
    } else {
      const page = await retryWhileOffline(() => client.sessions.list({ limit: PAGE_SIZE, after }));
      const known = sessions.value.length;
      batch(() => {
        addFound(page.data);
        nextPages.value = { ...nextPages.value, sessions: nextCursor(page) };
      });
      if (sessions.value.length === known) await loadMore(kind);
    }
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    await refresh(); // the item that marked the next page was deleted elsewhere
  }
}

export function updateDocument(document: Document): void {
  const known = documents.value.has(document.id);
  documents.value = known ? new Map(documents.value).set(document.id, document) : new Map([[document.id, document], ...documents.value]);
}

export function updateSession(session: Session): void {
  const known = sessions.value.some(({ id }) => id === session.id);
  sessions.value = known ? sessions.value.map((old) => (old.id === session.id ? session : old)) : [session, ...sessions.value];
}

/** Adds sessions that are not in the list yet, at their place by age. */
export function addFound(found: readonly Session[]): void {
  const known = new Set(sessions.value.map(({ id }) => id));
  const fresh = found.filter(({ id }) => !known.has(id));
  if (fresh.length === 0) return;
  sessions.value = [...sessions.value, ...fresh].sort((a, b) => b.created_at - a.created_at);
  for (const session of fresh) void followSession(session);
}

/** Shows a new session, and follows it until it has read its documents. */
export function addSession(session: Session): void {
  updateSession(session);
  void followSession(session);
}

function pendingDocuments(): string[] {
  return [...documents.value.values()].filter(({ status }) => status !== "ready" && status !== "failed").map(({ id }) => id);
}

let polling = false;
/** Seconds until the next request. */
let pollDelay = 0;

/**
 * Updates the documents that are being read, until there are none. It polls all of them with one request: an event stream for
 * each would use up the connections that a browser opens to one server.
 */
export async function pollPending(): Promise<void> {
  pollDelay = 0.1;
  if (polling) return;
  polling = true;
  try {
    while (pendingDocuments().length > 0) {
      await new Promise((resolve) => setTimeout(resolve, pollDelay * 1000));
      pollDelay = Math.min(2 * pollDelay, 2);
      await retryWhileOffline(refreshPending).catch((error: unknown) => {
        if (!(error instanceof RateLimitError)) throw error;
        pollDelay = error.retryAfter ?? 8;
      });
    }
  } catch (error) {
    lastError.value = errorText(error);
  } finally {
    polling = false;
  }
}

async function refreshPending(): Promise<void> {
  const listed = new Map((await client.documents.list({ limit: PAGE_SIZE })).data.map((document) => [document.id, document]));
  for (const id of pendingDocuments()) {
    const now = listed.get(id) ?? (await fetchDocument(id));
    if (now && documents.value.has(id)) updateDocument(now);
  }
}

/** Fetches a document. Returns null, and removes it from the page, if it does not exist. */
export async function fetchDocument(id: string): Promise<Document | null> {
  try {
    return await client.documents.get(id);
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    removeLocally(id);
    return null;
  }
}

/** Updates a session when it has read its documents, and when it has been answered. */
async function followSession(session: Session): Promise<void> {
  if ((session.status !== "reading" && !session.answering) || followedSessions.has(session.id)) return;
  followedSessions.add(session.id);
  try {
    await retryWhileOffline(() => client.sessions.wait(session.id));
  } catch {
    // The state that is fetched below says why.
  } finally {
    followedSessions.delete(session.id);
  }
  try {
    const now = await retryWhileOffline(() => client.sessions.get(session.id));
    updateSession(now);
    if (now.answering) setTimeout(() => void followSession(now), ANSWER_DELAY);
  } catch {
    removeSessionLocally(session.id);
  }
}

function removeLocally(document: string): void {
  deletedDocuments.add(document);
  documents.value = new Map([...documents.value].filter(([id]) => id !== document));
}

/** Loads a document that is not in the list. */
export async function loadDocument(id: string): Promise<void> {
  if (documents.value.has(id)) return;
  try {
    const document = await retryWhileOffline(() => fetchDocument(id));
    if (document) documents.value = new Map([...documents.value, [id, document]]);
    void pollPending();
  } catch {
    // The page shows it without a name.
  }
}

/** Loads a session that is not in the list. Returns false if it does not exist. */
export async function loadSession(id: string): Promise<boolean> {
  try {
    const session = await retryWhileOffline(() => client.sessions.get(id));
    addFound([session]);
    return true;
  } catch (error) {
    if (!(error instanceof NotFoundError)) throw error;
    return false;
  }
}

/** The model of new conversations, if there is a choice; else null. */
export function chosenModel(): Model | null {
  const choice = models.value.length > 1 ? models.value : [];
  return choice.find(({ id }) => id === answerSettings.value.model) ?? choice[0] ?? null;
}

/** The model of a conversation; null if the server no longer has it. */
export function modelOf(session: { model: string }): Model | null {
  return models.value.find(({ id }) => id === session.model) ?? null;
}

/** The pages of a list of sessions. */
export async function* sessionPages(filter: { query?: string; branchesOf?: string; signal?: AbortSignal }): AsyncGenerator<List<Session>> {
  for (let after: string | null = ""; after !== null; ) {
    const options = { limit: PAGE_SIZE, ...filter, ...(after && { after }) };
    const page: List<Session> = await retryWhileOffline(() => client.sessions.list(options));
    yield page;
    after = nextCursor(page);
  }
}

/** Creates a conversation about documents, and opens it if `shouldNavigate` returns true then. Returns its id if it was opened. */
export async function createSession(ids: readonly string[], shouldNavigate: () => boolean = () => true): Promise<string | null> {
  const chosen = chosenModel()?.id ?? null;
  const empty = sessions.value.find(
    (each) => each.messages === 0 && each.status !== "failed" && each.documents.join() === ids.join() && (chosen ?? each.model) === each.model,
  );
  const options = { idempotencyKey: newIdempotencyKey(), model: chosen };
  const session = empty ?? (await retryWhileOffline(() => client.sessions.create([...ids], options)).catch(refreshIfDeleted));
  if (!empty) addSession(session);
  if (!shouldNavigate()) return null;
  navigate({ session: session.id, panel: null });
  return session.id;
}

/** Shows what there is, if the page has used what another tab or program has deleted. Throws the error. */
async function refreshIfDeleted(error: unknown): Promise<never> {
  if (error instanceof NotFoundError) await refresh();
  throw error;
}

export async function fork(id: string): Promise<void> {
  const options = { idempotencyKey: newIdempotencyKey() };
  const session = await retryWhileOffline(() => client.sessions.fork(id, options));
  addSession(session);
  navigate({ session: session.id, panel: null });
}

/** Removes a session from the page. */
function removeSessionLocally(id: string): void {
  sessions.value = sessions.value.filter((session) => session.id !== id);
}

/** Runs `work`. If the session does not exist any more, removes it from the page, and throws the error. */
export async function withSession<T>(id: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof NotFoundError) removeSessionLocally(id);
    throw error;
  }
}

/** Deletes something, which another tab or program may have deleted already. */
async function deleteOnce(work: () => Promise<void>): Promise<void> {
  await retryWhileOffline(work).catch((error: unknown) => {
    if (!(error instanceof NotFoundError)) throw error;
  });
}

export async function rename(id: string, title: string): Promise<void> {
  updateSession(await retryWhileOffline(() => client.sessions.rename(id, title)));
}

export async function removeSession(id: string): Promise<void> {
  await deleteOnce(() => client.sessions.delete(id));
  forgetSession(id);
  removeSessionLocally(id);
  if (route.value.session === id) navigate({ session: null, panel: null });
}

export async function removeDocument(id: string): Promise<void> {
  await deleteOnce(() => client.documents.delete(id));
  removeLocally(id);
  const { panel } = route.value;
  if (panel?.kind === "text" && panel.document === id) navigate({ panel: null });
}

/** Whether a document is known to be deleted. */
export function isDeleted(id: string): boolean {
  return !documents.value.has(id) && deletedDocuments.has(id);
}

/** The name of a document to display. */
export function nameOf(id: string): string {
  const document = documents.value.get(id);
  if (!document) return isDeleted(id) ? "a deleted document" : "a document";
  return document.filename ?? `Text of ${new Date(document.created_at * 1000).toLocaleDateString()}`;
}

export function titleOf(session: Session): string {
  return session.title ?? documentsOf(session);
}

/** The names of a session's documents. */
export function documentsOf(session: Session): string {
  const names = session.documents.map(nameOf);
  if (names.length === 0) return "No document";
  return names.length > 2 ? `${names[0]} and ${names.length - 1} more` : names.join(" and ");
}
