/** A decoder of server-sent events from a response's body. */
import { StreamError } from "./errors.js";

/** Seconds without a byte after which the stream counts as lost. The server sends a comment every 15 seconds. */
const SILENCE_TIMEOUT = 60;

/** Yields the `data` of each event. Throws `StreamError` if the stream breaks or is silent. Leaving the loop closes it. */
export async function* serverSentEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await withTimeout(reader.read());
      if (done) return;
      text += decoder.decode(value, { stream: true });
      const lines = text.split(/\r\n|\n|\r(?!$)/); // a \r at the very end may be the first half of \r\n
      text = lines.pop() as string;
      for (const line of lines) {
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line === "" && data.length) {
          yield data.join("\n");
          data = [];
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The result of `read`. Throws `StreamError` if it takes longer than `SILENCE_TIMEOUT`. */
async function withTimeout<T>(read: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const alarm = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StreamError(`the server sent nothing for ${SILENCE_TIMEOUT} s`)), SILENCE_TIMEOUT * 1000);
  });
  try {
    return await Promise.race([read, alarm]);
  } catch (error) {
    if (error instanceof StreamError || (error as Error)?.name === "AbortError") throw error;
    throw new StreamError(`the stream was cut off: ${String((error as Error)?.message ?? error)}`);
  } finally {
    clearTimeout(timer);
  }
}
