/** Retries: which errors are transient, how long to wait before the next try, and idempotency keys. */
import { APIConnectionError, APIStatusError, StreamError } from "./errors.js";

/** Seconds. If the server asks for a longer delay, the error is thrown at once and the caller decides. */
const LONGEST_WAIT = 60;

/** Whether `error` is transient: the server, or a proxy in front of it, is busy or restarting. */
export function isTransient(error: unknown): boolean {
  if (error instanceof APIStatusError) return [429, 502, 503, 504].includes(error.status) || error.code === "idempotency_in_progress";
  if (error instanceof StreamError) {
    if (error.code === null) return error.closeCode !== 1008 && error.closeCode !== 1009; // policy violation, message too large
    return error.type === "service_unavailable_error" || error.type === "rate_limit_error";
  }
  return error instanceof APIConnectionError;
}

/** The seconds to wait after try number `attempt`: what the server asks for, else an exponential backoff. Null: do not retry. */
export function retryDelay(attempt: number, error: unknown, random: () => number = Math.random): number | null {
  const asked = error instanceof APIStatusError || error instanceof StreamError ? error.retryAfter : null;
  if (asked !== null) return asked <= LONGEST_WAIT ? asked : null;
  return Math.min(0.25 * 2 ** attempt, 8) * (0.75 + random() / 2); // jitter, so that many clients do not retry at the same moment
}

/** Resolves after `seconds`; rejects with the signal's reason when it is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
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

/** A new random idempotency key. Does not use `crypto.randomUUID`, which browsers offer only over https. */
export function newIdempotencyKey(): string {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
