/** The server, and whether it is there: what fails because it is away waits until it is back. */
import { signal } from "@preact/signals";
import { APIConnectionError, APIStatusError, AuthenticationError, Everlong, statusError } from "everlong-client";
import { always } from "./kept.js";

const KEY = "everlong.key";
const PATIENCE = 5000; // ms without an answer after which the server is away

export type Link =
  | { state: "there" }
  | { state: "away"; why: string; again: number } // again: the moment of the next try, in ms
  | { state: "locked"; refused: boolean };

export const link = signal<Link>({ state: "there" });
/** True for a moment after the server has come back. */
export const returned = signal(false);

let key = always.get(KEY);
/** The moment at which the server was last heard of, in ms. */
let heard = 0;

// A key that no header can hold is none: the server asks for another one.
const apiKey = () => (key && /^[\x21-\x7e]+$/.test(key) ? key : null);

async function fetched(...request: Parameters<typeof fetch>): Promise<Response> {
  const response = await fetch(...request);
  alive();
  return response;
}

export const client = new Everlong({ apiKey, retries: 1, outageTimeout: Infinity, fetch: fetched });
const once = new Everlong({ apiKey, retries: 0, fetch: fetched });

/** Notes that the server was heard of just now. */
export function alive(): void {
  heard = Date.now();
}

export function useKey(given: string): void {
  key = given.trim() || null;
  always.set(KEY, key);
  void look(true);
}

export function hasKey(): boolean {
  return key !== null;
}

let waiting: (() => void)[] = [];
let timer: ReturnType<typeof setTimeout> | undefined;
let pause = 1000;

/** Whether `error` says that the server is not there, or not for us: then all wait for it. */
export function gone(error: unknown): boolean {
  if (error instanceof AuthenticationError) {
    link.value = { state: "locked", refused: key !== null };
    return true;
  }
  if (error instanceof APIConnectionError) return away("The server does not answer."), true;
  if (error instanceof APIStatusError && (error.status === 503 || error.status === 502 || error.status === 504))
    return away(error.code === "loading" ? "The server is loading its model." : `The server can't serve now: ${error.message}.`), true;
  return false;
}

export function away(why: string): void {
  if (link.value.state === "locked") return;
  link.value = { state: "away", why, again: Date.now() + pause };
  clearTimeout(timer);
  timer = setTimeout(look, pause);
  pause = Math.min(pause * 1.5, 5000);
}

/** Asks the server whether it is there, and says so; and whether it is so for us, which counts as a request of ours. */
export async function look(forUs = link.value.state !== "there"): Promise<void> {
  clearTimeout(timer);
  timer = undefined;
  try {
    const answer = await fetch("/readyz", { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
    if (!answer.ok) throw statusError(answer.status, null, await answer.text());
    if (forUs) await once.models({ signal: AbortSignal.timeout(PATIENCE) });
  } catch (error) {
    if (gone(error) || busy(error)) return;
    // What else it answers (429, say), it is there.
    if (!(error instanceof APIStatusError) || error.status >= 500) return away("The server does not answer.");
  }
  pause = 1000;
  if (link.value.state === "there") return;
  link.value = { state: "there" };
  returned.value = true;
  setTimeout(() => (returned.value = false), 4000);
  const woken = waiting;
  waiting = [];
  for (const wake of woken) wake();
}

/** Whether `error` says only that the question had to wait for its turn: of connections to one server a browser has few. */
function busy(error: unknown): boolean {
  return (error as Error).name === "TimeoutError" && link.value.state === "there" && Date.now() - heard < PATIENCE;
}

/** Resolves when the server is there. */
export function there(): Promise<void> {
  return link.value.state === "there" ? Promise.resolve() : new Promise((resolve) => waiting.push(resolve));
}

/** What `work` gives; while the server is away it waits, and is done again. */
export async function surely<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!gone(error)) throw error;
      await there();
    }
  }
}

// A server that went away while nothing was asked of it is noticed, too.
setInterval(() => {
  if (document.visibilityState === "visible" && link.value.state === "there") void look();
}, 5000);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && void look());
addEventListener("online", () => void look());
