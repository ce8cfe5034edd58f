/** The questions of this browser: those being typed, and those asked that have no answer yet. They survive the tab and the server. */
import { signal } from "@preact/signals";
import type { Message, Session } from "everlong-client";
import { persistent } from "./storage.js";

const DRAFT = "everlong.draft.";
const ASKED = "everlong.asked.";

/** A question that was sent. The session had `after` messages then. */
interface Asked {
  question: string;
  after: number;
}

/** The questions without an answer, by session. */
export const askedQuestions = signal<ReadonlyMap<string, Asked>>(
  new Map(persistent.names(ASKED).flatMap((name) => parsed(persistent.get(name)).map((asked) => [name.slice(ASKED.length), asked] as const))),
);

function parsed(text: string | null): Asked[] {
  try {
    const { question, after } = JSON.parse(text ?? "{}") as Partial<Asked>;
    return typeof question === "string" && typeof after === "number" ? [{ question, after }] : [];
  } catch {
    return [];
  }
}

/** Keeps a question until `forgetAsked`. */
export function rememberAsked(session: string, question: string, after: number): void {
  persistent.set(ASKED + session, JSON.stringify({ question, after }));
  askedQuestions.value = new Map(askedQuestions.value).set(session, { question, after });
}

export function forgetAsked(session: string): void {
  if (!askedQuestions.value.has(session)) return;
  persistent.set(ASKED + session, null);
  askedQuestions.value = new Map([...askedQuestions.value].filter(([id]) => id !== session));
}

/** Whether a question was sent that is neither answered nor being answered. */
export function isUnanswered(session: Session): boolean {
  const asked = askedQuestions.value.get(session.id);
  return asked !== undefined && !session.answering && session.messages <= asked.after;
}

/** Whether the session's messages have the question. */
export function isIn(messages: readonly Message[], { question, after }: Asked): boolean {
  return messages.slice(after).some(({ role, content }) => role === "user" && content === question);
}

/** The question that is being typed in a session. Sets it if `text` is given. */
export function draft(session: string, text?: string): string {
  if (text !== undefined) persistent.set(DRAFT + session, text || null);
  return persistent.get(DRAFT + session) ?? "";
}

/** Removes what is kept of a session. */
export function forgetSession(session: string): void {
  draft(session, "");
  forgetAsked(session);
}

/** Removes all questions. */
export function forgetQuestions(): void {
  for (const prefix of [DRAFT, ASKED]) for (const name of persistent.names(prefix)) persistent.set(name, null);
  askedQuestions.value = new Map();
}

/** Marks the session's question as one that a tab is waiting for, until the returned function is called or the tab is closed. */
export function markWaiting(session: string): () => void {
  let release = () => {};
  const released = new Promise<void>((resolve) => (release = resolve));
  navigator.locks?.request(ASKED + session, { mode: "shared" }, () => released).catch(() => {}); // where storage is blocked, browsers refuse locks
  return release;
}

/** Whether a tab of this browser is waiting for the session's answer. False where browsers do not tell, as on pages without TLS or with blocked storage. */
export async function isWaiting(session: string): Promise<boolean> {
  const { held } = (await navigator.locks?.query().catch(() => null)) ?? {};
  return held?.some(({ name }) => name === ASKED + session) ?? false;
}
