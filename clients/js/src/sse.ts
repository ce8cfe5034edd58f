/** Server-sent events, as they come out of a response's body. */
import { StreamError } from "./errors.js";

/** A server sends a comment every 15 seconds: one that is silent for so long (in seconds) is gone. */
const SILENCE = 60;

/** The `data` of each event. Throws `StreamError` if the stream breaks or falls silent. Leaving the loop closes it. */
export async function* serverSentEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let text = "";
  let data: string[] = [];
  try {
    for (;;) {
      const { done, value } = await silent(reader.read());
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

/** What `read` reads, within the time. */
async function silent<T>(read: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const alarm = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new StreamError(`the server said nothing for ${SILENCE} s`)), SILENCE * 1000);
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
