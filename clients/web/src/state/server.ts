/** The connection to the server. Calls that fail because the server is unavailable wait and are repeated. */
import { signal } from "@preact/signals";
import { APIConnectionError, APIStatusError, AuthenticationError, Everlong, statusError } from "everlong-client";
import { forgetQuestions } from "./questions.js";
import { persistent } from "./storage.js";

const KEY = "everlong.key";
/** The `client` of sessions that the page created. */
export const PAGE = "page";
const RESPONSE_TIMEOUT = 5000; // ms without a response after which the server counts as offline

export type ConnectionState =
  | { state: "online" }
  | { state: "offline"; why: string; again: number } // again: the time of the next try, in Unix ms
  | { state: "locked"; refused: boolean };

export const connection = signal<ConnectionState>({ state: "online" });
/** True for a few seconds after the server becomes available again. */
export const restored = signal(false);

let key = persistent.get(KEY);
/** The time of the last response, in Unix ms. */
let lastResponse = 0;
/** Whether the server has accepted a request. Then the page shows what belongs to the key's tenant. */
let answered = false;

// A key that cannot be sent in a header is not sent, so that the server asks for another one.
const apiKey = () => (key && /^[\x21-\x7e]+$/.test(key) ? key : null);

/** The number of changes to conversations and documents for which the user has waited a second. */
export const slowChanges = signal(0);
const SLOW = 1000; // ms

/** Counts `work` in `slowChanges`. */
async function countedIfSlow<T>(work: Promise<T>): Promise<T> {
  let slow = 0;
  const timer = setTimeout(() => (slowChanges.value += slow = 1), SLOW);
  try {
    return await work;
  } finally {
    clearTimeout(timer);
    slowChanges.value -= slow;
  }
}

async function trackedFetch(address: RequestInfo | URL, init?: RequestInit): Promise<Response> {
  // Marks the sessions that it creates, so that the page can list them apart from those of other programs.
  const work = fetch(address, { ...init, headers: { ...init?.headers, "X-Everlong-Client": PAGE } });
  const isChange = init?.method !== "GET" && /\/v1\/(sessions|documents)\b/.test(String(address));
  const response = await (isChange ? countedIfSlow(work) : work);
  markAlive();
  answered ||= response.ok;
  return response;
}

export const client = new Everlong({ apiKey, retries: 1, outageTimeout: Infinity, fetch: trackedFetch });
const probe = new Everlong({ apiKey, retries: 0, fetch: trackedFetch });

/** Records that the server has just responded. */
export function markAlive(): void {
  lastResponse = Date.now();
}

/** Sets the key. Nothing of another key's tenant stays in the browser: a changed key removes the questions, and empties the page. */
export function setKey(given: string): void {
  const before = key;
  key = given.trim() || null;
  persistent.set(KEY, key);
  if (key !== before) forgetQuestions();
  if (key !== before && answered) location.reload();
  else void checkServer(true);
}

export function hasKey(): boolean {
  return key !== null;
}

let waitingForServer: (() => void)[] = [];
let timer: ReturnType<typeof setTimeout> | undefined;
let pollDelay = 1000;

/** Updates the connection state if `error` means that the server is unavailable or refuses the key. Returns whether it does. */
export function reportOutage(error: unknown): boolean {
  if (error instanceof AuthenticationError) {
    connection.value = { state: "locked", refused: key !== null };
    return true;
  }
  if (error instanceof APIConnectionError) return markOffline("The server does not respond."), true;
  if (error instanceof APIStatusError && (error.status === 503 || error.status === 502 || error.status === 504))
    return markOffline(error.code === "loading" ? "The server is loading its model." : `The server is unavailable: ${error.message}.`), true;
  return false;
}

export function markOffline(why: string): void {
  if (connection.value.state === "locked") return;
  connection.value = { state: "offline", why, again: Date.now() + pollDelay };
  clearTimeout(timer);
  timer = setTimeout(checkServer, pollDelay);
  pollDelay = Math.min(pollDelay * 1.5, 5000);
}

/**
 * Checks whether the server is ready and updates the connection state. `withKey` also checks the API key, with a request that
 * counts towards the tenant's rate limit.
 */
export async function checkServer(withKey = connection.value.state !== "online"): Promise<void> {
  clearTimeout(timer);
  timer = undefined;
  try {
    const answer = await fetch("/readyz", { cache: "no-store", signal: AbortSignal.timeout(RESPONSE_TIMEOUT) });
    if (!answer.ok) throw statusError(answer.status, null, await answer.text());
    if (withKey) await probe.models({ signal: AbortSignal.timeout(RESPONSE_TIMEOUT) });
  } catch (error) {
    if (reportOutage(error) || isQueuedRequest(error)) return;
    // Any other response, such as 429, shows that the server is available.
    if (!(error instanceof APIStatusError) || error.status >= 500) return markOffline("The server does not respond.");
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

/** Whether the request only waited for a free connection: a browser opens few to one server, and others got responses. */
function isQueuedRequest(error: unknown): boolean {
  return (error as Error).name === "TimeoutError" && connection.value.state === "online" && Date.now() - lastResponse < RESPONSE_TIMEOUT;
}

/** Resolves when the server is available. */
export function serverOnline(): Promise<void> {
  return connection.value.state === "online" ? Promise.resolve() : new Promise((resolve) => waitingForServer.push(resolve));
}

/** Returns the result of `work`. While the server is unavailable, waits and repeats it. */
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

// Notices an outage even if the page sends no other request.
setInterval(() => {
  if (document.visibilityState === "visible" && connection.value.state === "online") void checkServer();
}, 5000);
document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && void checkServer());
addEventListener("online", () => void checkServer());
