/** The conversations that the sidebar lists: search, groups, and what can be done with several at once. */
import { batch, computed, effect, signal } from "@preact/signals";
import { type Message, type Session, newIdempotencyKey } from "everlong-client";
import { chooseFiles } from "../lib/files.js";
import { UserError } from "./errors.js";
import { addFound, addSession, documents, documentsOf, fetchDocument, loadMore, modelOf, nameOf, nextPages, removeSession, sessionPages, sessions, showErrors, titleOf, upgraded } from "./library.js";
import { askedQuestions } from "./questions.js";
import { navigate, route } from "./route.js";
import { PAGE, client, retryWhileOffline } from "./server.js";
import { turns } from "./turns.js";

export const query = signal("");
export const grouping = signal<"date" | "document">("date");
/** The ids of the selected conversations; null while none can be selected. */
export const selection = signal<ReadonlySet<string> | null>(null);

/** Conversations with a question, answered or not, and those that are open, being read or being answered. */
export const listed = computed(() => {
  const [open, running, asked] = [route.value.session, turns.value, askedQuestions.value]; // read once: with thousands of conversations, each read of a signal counts
  return sessions.value.filter((each) => each.messages > 0 || each.status === "reading" || each.answering || each.id === open || running.has(each.id) || asked.has(each.id));
});

/** Those of `listed` that have all words of the query: in the title or the documents' names, or as the server found. */
export const found = computed(() => {
  const words = fold(query.value).split(/\s+/).filter(Boolean);
  if (words.length === 0) return listed.value;
  if (searched.documents !== documents.value) searched = { documents: documents.value, texts: new WeakMap() };
  const { texts } = searched;
  const { ids } = serverSearch.value;
  return listed.value.filter((each) => {
    if (ids.has(each.id)) return true;
    const text = texts.get(each) ?? fold(`${titleOf(each)} ${each.documents.map(nameOf).join(" ")}`);
    texts.set(each, text);
    return words.every((word) => text.includes(word));
  });
});

/** The texts that are searched, by conversation: folding thousands of them takes longer than a frame. The documents have the names. */
let searched = { documents: documents.peek(), texts: new WeakMap<Session, string>() };

const ROWS = 100;
/** How many conversations are shown. With thousands, the browser would need many frames to lay them out. */
const rows = signal(ROWS);
effect(() => {
  query.value; // a new search shows its first results
  rows.value = ROWS;
});

/** Whether there are conversations that are not shown. */
export const hasMore = computed(() => found.value.length > rows.value || (!query.value.trim() && nextPages.value.sessions !== null));

/** Shows more conversations. Loads them if necessary. */
export async function showMore(): Promise<void> {
  if (!query.value.trim() && found.value.length <= rows.value) await loadMore("sessions");
  rows.value += ROWS;
}

export interface Group {
  name: string;
  sessions: Session[];
}

export const groups = computed((): Group[] => {
  const name = (each: Session) => (isForeign(each) ? OTHERS : grouping.value === "date" ? dateName(each) : documentsOf(each));
  const named = new Map<string, Session[]>();
  for (const each of found.value.slice(0, rows.value)) {
    const group = name(each);
    named.set(group, [...(named.get(group) ?? []), each]);
  }
  return [...named].map(([name, sessions]) => ({ name, sessions })).sort((a, b) => Number(a.name === OTHERS) - Number(b.name === OTHERS));
});

/** The group of conversations that other programs have created, such as the command line. */
export const OTHERS = "From other programs";

/** Whether another program has created it. Older versions of the server did not store which. */
function isForeign({ client }: Session): boolean {
  return client != null && client !== PAGE;
}

function fold(text: string): string {
  return text.normalize("NFKD").replace(/\p{M}/gu, "").toLowerCase();
}

function dateName({ created_at }: Session): string {
  const then = new Date(created_at * 1000);
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(then).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  if (days < 7) return "This week";
  return then.toLocaleDateString("en", { month: "long", year: "numeric" });
}

const TYPING = 250; // ms without a change of the query until the server searches
const MOST_PAGES = 16;

/** What the server has found: it also searches the messages, and conversations that the page has not loaded. */
export const serverSearch = signal<{ ids: ReadonlySet<string>; done: boolean }>({ ids: new Set(), done: true });

let stopSearch = new AbortController();
effect(() => {
  const text = upgraded.value ? query.value.trim() : "";
  stopSearch.abort();
  const stop = (stopSearch = new AbortController());
  serverSearch.value = { ids: new Set(), done: !text };
  if (text) setTimeout(() => !stop.signal.aborted && void showErrors(() => searchServer(text.slice(0, 200), stop.signal)), TYPING);
});

// Shows one page of results at first, then more and more at once: with thousands of conversations, drawing the list takes longer than a frame.
async function searchServer(text: string, signal: AbortSignal): Promise<void> {
  let fresh: Session[] = [];
  let [pages, shown] = [0, 1];
  try {
    for await (const { data, has_more } of sessionPages({ query: text, signal })) {
      if (signal.aborted) return;
      fresh.push(...data);
      if (++pages < shown && has_more) continue;
      batch(() => {
        addFound(fresh);
        serverSearch.value = { ids: new Set([...serverSearch.value.ids, ...fresh.map(({ id }) => id)]), done: !has_more };
      });
      [fresh, pages, shown] = [[], 0, Math.min(2 * shown, MOST_PAGES)];
    }
  } catch (error) {
    if (signal.aborted) return;
    serverSearch.value = { ...serverSearch.value, done: true };
    throw error;
  }
}

export function toggleSelected(id: string): void {
  const chosen = new Set(selection.value);
  if (!chosen.delete(id)) chosen.add(id);
  selection.value = chosen;
}

/** Deletes the selected conversations, a few at a time. */
export async function removeSelected(): Promise<void> {
  const ids = [...(selection.value ?? [])];
  const work = async () => {
    for (let id = ids.pop(); id; id = ids.pop()) await removeSession(id);
  };
  await Promise.all([work(), work(), work()]);
  selection.value = null;
}

/** A conversation as a file. */
interface Exported {
  title: string | null;
  documents: { id: string; filename: string }[];
  model: string;
  created_at: number;
  messages: Message[];
}

const KIND = "everlong.conversations";

async function exported(session: Session): Promise<Exported> {
  const { title, model, created_at } = session;
  const messages = await retryWhileOffline(() => client.sessions.messages(session.id));
  return { title, documents: session.documents.map((id) => ({ id, filename: nameOf(id) })), model, created_at, messages };
}

/** Saves conversations as one JSON file, which `importFile` reads. */
export async function exportJson(chosen: readonly Session[]): Promise<void> {
  const conversations: Exported[] = [];
  for (const session of chosen) conversations.push(await exported(session));
  const name = chosen.length === 1 ? titleOf(chosen[0]!) : `${chosen.length} conversations`;
  save(name, "json", "application/json", JSON.stringify({ kind: KIND, version: 1, conversations }, null, 2));
}

/** Saves a conversation as Markdown, with its evidence as quotations. */
export async function exportMarkdown(session: Session): Promise<void> {
  const { messages, documents } = await exported(session);
  const parts = [`# ${titleOf(session)}`, `Documents: ${documents.map(({ filename }) => filename).join(", ") || "none"}. Model: ${session.model}.`];
  for (const message of messages) {
    parts.push(message.role === "user" ? `## ${message.content}` : message.content);
    for (const [n, passage] of (message.evidence ?? []).entries())
      parts.push(`> [${n + 1}] ${nameOf(passage.document)}${passage.page ? `, page ${passage.page}` : ""}: ${passage.text.replace(/\s+/g, " ")}`);
  }
  save(titleOf(session), "md", "text/markdown", `${parts.join("\n\n")}\n`);
}

const LONGEST_NAME = 80; // characters: at most 240 bytes without emoji, of the 255 that file systems allow

function save(name: string, extension: string, type: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = url;
  const allowed = [...name.replace(/[\\/:*?"<>|\u0000-\u001f]+/g, " ")];
  link.download = `${allowed.slice(0, LONGEST_NAME).join("")}.${extension}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** Creates the conversations of an exported file. Documents that are no longer on the server are left out. */
async function importFile(file: File): Promise<void> {
  const { kind, version, conversations } = parsed(await file.text());
  if (kind !== KIND || version !== 1 || !Array.isArray(conversations)) throw new UserError(`${file.name} is not a file of exported conversations. Choose one that was saved with “Export as JSON”.`);
  for (const { title, documents, messages, model } of conversations as Exported[]) {
    const present: string[] = [];
    for (const { id } of documents)
      if (await retryWhileOffline(() => fetchDocument(id))) present.push(id);
    const options = { messages, title, model: modelOf({ model })?.id ?? null, idempotencyKey: newIdempotencyKey() };
    const session = await retryWhileOffline(() => client.sessions.create(present, options));
    addSession(session);
    if (conversations.length === 1) navigate({ session: session.id, panel: null });
  }
}

function parsed(text: string): { kind?: unknown; version?: unknown; conversations?: unknown[] } {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? value : {};
  } catch {
    return {};
  }
}

/** Opens a dialog to choose a file of exported conversations, and imports it. */
export function chooseImport(): void {
  chooseFiles({ accept: ".json,application/json" }, ([file]) => importFile(file!));
}
