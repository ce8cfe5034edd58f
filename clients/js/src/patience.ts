/** When to try again, and for how long. */
import { APIConnectionError, APIStatusError, StreamError } from "./errors.js";

/** A longer wait is the caller's to decide on: the error is thrown at once. */
const LONGEST_WAIT = 60;

/** Whether `error` is what a server that is busy or restarts, or the proxy before it, may answer. */
export function passing(error: unknown): boolean {
  if (error instanceof APIStatusError) return [429, 502, 503, 504].includes(error.status) || error.code === "idempotency_in_progress";
  if (error instanceof StreamError) {
    if (error.code === null) return error.closeCode !== 1008 && error.closeCode !== 1009; // refused, too large
    return error.type === "service_unavailable_error" || error.type === "rate_limit_error";
  }
  return error instanceof APIConnectionError;
}

/** Seconds before try number `attempt` + 1: what the server asks for, else twice as long each time; null is never. */
export function delay(attempt: number, error: unknown, random: () => number = Math.random): number | null {
  const asked = error instanceof APIStatusError || error instanceof StreamError ? error.retryAfter : null;
  if (asked !== null) return asked <= LONGEST_WAIT ? asked : null;
  return Math.min(0.25 * 2 ** attempt, 8) * (0.75 + random() / 2); // not all clients at the same moment
}

/** Resolves after `seconds`; rejects with the signal's reason when it is aborted. */
export function pause(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A name for one request, by which the server knows it again. Not `crypto.randomUUID`: that takes https. */
export function newKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
