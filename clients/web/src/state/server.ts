/** The server, and whether it is there: what fails because it is away waits until it is back. */
import { signal } from "@preact/signals";
import { APIConnectionError, APIStatusError, AuthenticationError, Everlong, statusError } from "everlong-client";
import { persistent } from "./storage.js";

const KEY = "everlong.key";
const RESPONSE_TIMEOUT = 5000; // ms without an answer after which the server is away

export type ConnectionState =
  | { state: "online" }
  | { state: "offline"; why: string; again: number } // again: the moment of the next try, in ms
  | { state: "locked"; refused: boolean };

export const connection = signal<ConnectionState>({ state: "online" });
/** True for a moment after the server has come back. */
export const restored = signal(false);

let key = persistent.get(KEY);
/** The moment at which the server was last heard of, in ms. */
let lastResponse = 0;

// A key that no header can hold is none: the server asks for another one.
const apiKey = () => (key && /^[\x21-\x7e]+$/.test(key) ? key : null);

async function trackedFetch(...request: Parameters<typeof fetch>): Promise<Response> {
  const response = await fetch(...request);
  markAlive();
  return response;
}

export const client = new Everlong({ apiKey, retries: 1, outageTimeout: Infinity, fetch: trackedFetch });
const probe = new Everlong({ apiKey, retries: 0, fetch: trackedFetch });

/** Notes that the server was heard of just now. */
export function markAlive(): void {
  lastResponse = Date.now();
}

export function setKey(given: string): void {
  key = given.trim() || null;
  persistent.set(KEY, key);
  void checkServer(true);
}

export function hasKey(): boolean {
  return key !== null;
}

let waitingForServer: (() => void)[] = [];
let timer: ReturnType<typeof setTimeout> | undefined;
let pollDelay = 1000;

/** Whether `error` says that the server is not there, or not for us: then all wait for it. */
export function reportOutage(error: unknown): boolean {
  if (error instanceof AuthenticationError) {
    connection.value = { state: "locked", refused: key !== null };
    return true;
  }
  if (error instanceof APIConnectionError) return markOffline("The server does not answer."), true;
  if (error instanceof APIStatusError && (error.status === 503 || error.status === 502 || error.status === 504))
    return markOffline(error.code === "loading" ? "The server is loading its model." : `The server can't serve now: ${error.message}.`), true;
  return false;
}

export function markOffline(why: string): void {
  if (connection.value.state === "locked") return;
  connection.value = { state: "offline", why, again: Date.now() + pollDelay };
  clearTimeout(timer);
  timer = setTimeout(checkServer, pollDelay);
  pollDelay = Math.min(pollDelay * 1.5, 5000);
}

/** Asks the server whether it is there, and says so; and whether it is so for us, which counts as a request of ours. */
export async function checkServer(withKey = connection.value.state !== "online"): Promise<void> {
  clearTimeout(timer);
  timer = undefined;
  try {
    const answer = await fetch("/readyz", { cache: "no-store", signal: AbortSignal.timeout(RESPONSE_TIMEOUT) });
    if (!answer.ok) throw statusError(answer.status, null, await answer.text());
    if (withKey) await probe.models({ signal: AbortSignal.timeout(RESPONSE_TIMEOUT) });
  } catch (error) {
    if (reportOutage(error) || isQueuedRequest(error)) return;
    // What else it answers (429, say), it is there.
    if (!(error instanceof APIStatusError) || error.status >= 500) return markOffline("The server does not answer.");
  }
  pollDelay = 1000;
  if (connection.value.state === "online") return;
  connection.value = { state: "online" };
  restored.value = true;
  setTimeout(() => (restored.value = false), 4000);
  const waiters = waitingForServer;
  waitingForServer = [];
  for (const wake of waiters) wake();
}

/** Whether `error` says only that the question had to wait for its turn: of connections to one server a browser has few. */
function isQueuedRequest(error: unknown): boolean {
  return (error as Error).name === "TimeoutError" && connection.value.state === "online" && Date.now() - lastResponse < RESPONSE_TIMEOUT;
}

/** Resolves when the server is there. */
export function serverOnline(): Promise<void> {
  return connection.value.state === "online" ? Promise.resolve() : new Promise((resolve) => waitingForServer.push(resolve));
}

/** What `work` gives; while the server is away it waits, and is done again. */
export async function retryWhileOffline<T>(work: () => Promise<T>): Promise<T> {
  for (;;) {
    try {
      return await work();
    } catch (error) {
      if (!reportOutage(error)) throw error;
      await serverOnline();
    }
  }
}

// A server that went away while nothing was asked of it is noticed, too.
setInterval(() => {
  if (document.visibilityState === "visible" && connection.value.state === "online") void checkServer();
}, 5000);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && void checkServer());
addEventListener("online", () => void checkServer());
