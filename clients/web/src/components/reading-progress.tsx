/** How far the server has read a document. */
import type { Document } from "everlong-client";
import { duration, pages, percent } from "../lib/format.js";
import { nameOf } from "../state/library.js";

/** Shows how much of a document has been read, the speed, and the estimated time left. */
export function ReadingProgress({ document }: { document: Document }) {
  const { progress, tokens, tokens_per_second: rate, status, error } = document;
  if (status === "failed")
    return (
      <p class="bad" role="alert">
        The server could not read this document{error ? `: ${error.message}` : ""}. Delete it, and upload it again.
      </p>
    );
  const left = progress && rate ? (tokens * (1 - progress)) / progress / rate : null;
  return (
    <>
      <progress aria-label={`Reading ${nameOf(document.id)}`} max={1} {...(progress === null ? {} : { value: progress })} />
      <p class="note">
        {progress === null ? "Waiting to be read" : `${percent(progress)} read · ${pages(tokens)}`}
        {left !== null && progress !== 1 && ` · about ${duration(left)} left`}
      </p>
    </>
  );
}
