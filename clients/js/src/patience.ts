/** When to try again, and for how long. */
import { APIConnectionError, APIStatusError, StreamError } from "./errors.js";

/** A longer wait is the caller's to decide on: the error is thrown at once. */
const LONGEST_WAIT = 60;

/** Whether the server refused before it did anything, so that whatever was asked can be asked again. */
export function refused(error: unknown): boolean {
  if (!(error instanceof APIStatusError)) return false;
  // A store that went away may have done its part before it did.
  return error.status === 429 || (error.status === 503 && error.code !== "store_unavailable");
}

/** Whether `error` is what a server that restarts, or the proxy before it, may answer. */
export function passing(error: unknown): boolean {
  if (error instanceof APIStatusError) return [429, 502, 503, 504].includes(error.status);
  if (error instanceof StreamError) {
    if (error.code === null) return error.closeCode !== 1008 && error.closeCode !== 1009; // refused, too large
    return error.type === "service_unavailable_error" || error.type === "rate_limit_error";
  }
  return error instanceof APIConnectionError;
}

/** Seconds before try number `attempt` + 1: what the server asks for, else twice as long each time; null is never. */
export function delay(attempt: number, error: unknown, random: () => number = Math.random): number | null {
  const asked = error instanceof APIStatusError ? error.retryAfter : null;
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
