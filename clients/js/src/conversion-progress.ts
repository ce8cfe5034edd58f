/** Reports the page that the server is at in a file that it converts, while the upload waits for its answer. */
import { sleep } from "./retry.js";
import type { Call, Transport } from "./transport.js";
import type { ArchiveOptions } from "./types.js";

/** Seconds between two requests for the progress. */
const INTERVAL = 1;

/** Runs `work`, which sends `call`, and calls `onConversion` each time that the page changes. */
export async function watchConversion<T>(transport: Transport, call: Call, { onConversion }: ArchiveOptions, work: () => Promise<T>): Promise<T> {
  const { idempotencyKey: key } = call;
  if (!onConversion || !key) return work();
  const ended = new AbortController();
  const watch = async () => {
    let last: number | null = null;
    for (;;) {
      await sleep(INTERVAL, ended.signal);
      const page = await conversion(transport, key, ended.signal);
      if (page === null || page.page === last) continue;
      last = page.page;
      onConversion(page.page, page.pages);
    }
  };
  void watch().catch(() => {}); // ends when the upload does
  try {
    return await work();
  } finally {
    ended.abort();
  }
}

/** Null if the server converts no pages, or does not answer. */
async function conversion(transport: Transport, key: string, signal: AbortSignal): Promise<{ page: number; pages: number } | null> {
  try {
    const { page, pages } = await transport.json<{ page: number | null; pages: number | null }>(
      { method: "GET", path: "/v1/conversion", headers: { "Idempotency-Key": key }, signal });
    return page === null || pages === null ? null : { page, pages };
  } catch (error) {
    if (signal.aborted) throw error;
    return null;
  }
}
