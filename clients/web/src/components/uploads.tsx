/** The running uploads, and those that have ended for this conversation with something to tell. */
import { useLayoutEffect, useRef } from "preact/hooks";
import { plural, size } from "../lib/format.js";
import { retryUpload } from "../state/branches.js";
import type { UploadProblem } from "../state/errors.js";
import { showErrors } from "../state/library.js";
import { route } from "../state/route.js";
import { type Upload, dismissUpload, hasEnded, isSent, pauseUpload, resumeUpload, uploads } from "../state/uploads.js";
import { Notes } from "./notes.js";

const STATES: Partial<Record<Upload["state"], string>> = { queued: ", waiting for others", paused: ", paused" };

/** The running uploads in their order, then those that have ended, newest first. Each new upload is scrolled into view. */
export function Uploads() {
  const running = uploads.value.filter((upload) => !hasEnded(upload));
  const ended = uploads.value.filter((upload) => hasEnded(upload) && upload.place === route.value.session);
  const shown = [...running, ...ended.reverse()];
  const section = useRef<HTMLElement>(null);
  const newest = running.at(-1)?.key;
  const seen = useRef(-1);
  useLayoutEffect(() => {
    if (newest === undefined || newest <= seen.current) return; // when the newest upload ends, an older one becomes the newest: do not scroll to it again
    seen.current = newest;
    section.current!.scrollIntoView({ block: "nearest" });
  }, [newest]);
  if (shown.length === 0) return null;
  return (
    <section ref={section} aria-label="Uploads">
      <ul class="cards">
        {shown.map((upload) => (
          <li key={upload.key} class="card">
            <UploadCard upload={upload} />
          </li>
        ))}
      </ul>
    </section>
  );
}

function UploadCard({ upload }: { upload: Upload }) {
  const { key, file, state, sent, page, error, notes, sameAs } = upload;
  const ended = hasEnded(upload);
  return (
    <>
      <div class="row">
        <span class="title">{file.name}</span>
        {!ended && !isSent(upload) && <PauseButton upload={upload} />}
        {error?.again && (
          <button class="small" aria-label={`Try ${file.name} again`} onClick={() => void showErrors(() => retryUpload(upload))}>
            Try again
          </button>
        )}
        <button class="quiet" aria-label={`${ended ? "Dismiss" : "Cancel"} ${file.name}`} onClick={() => dismissUpload(key)}>
          ✕
        </button>
      </div>
      {error && <Problem problem={error} />}
      {sameAs !== null && (
        <p class="note" role="status">
          You have uploaded the same file before. It is the document {sameAs}.
        </p>
      )}
      {state === "done" && (
        <Notes open notes={notes} summary={`The other files are documents now. ${plural(notes.length, "note")} on what was left out:`} />
      )}
      {!ended && (
        <>
          {!isSent(upload) ? (
            <progress aria-label={`Uploading ${file.name}`} max={file.size} value={sent} />
          ) : (
            // The share is unknown until the server has finished the first page.
            <progress aria-label={`Converting ${file.name}`} max={page?.[1] ?? 1} {...(page && page[0] > 1 && { value: page[0] - 1 })} />
          )}
          <p class="note">{progressOf(upload)}</p>
        </>
      )}
    </>
  );
}

function Problem({ problem: { text, detail } }: { problem: UploadProblem }) {
  return (
    <>
      <p class="bad" role="alert">
        {text}
      </p>
      {detail && (
        <details class="note">
          <summary>What the server says</summary>
          <p>{detail}</p>
        </details>
      )}
    </>
  );
}

function progressOf(upload: Upload): string {
  const { file, each, sent, state, page } = upload;
  if (!isSent(upload)) return `${size(sent)} of ${size(file.size)} uploaded${STATES[state] ?? ""}`;
  const place = page ? `: page ${page[0]} of ${page[1]}` : "";
  return `${size(file.size)} uploaded. The server extracts the text of ${each ? "each file" : "the file"}${place}.`;
}

function PauseButton({ upload: { key, file, state } }: { upload: Upload }) {
  const paused = state === "paused";
  return (
    <button class="quiet small" aria-label={`${paused ? "Resume" : "Pause"} ${file.name}`} onClick={() => (paused ? resumeUpload : pauseUpload)(key)}>
      {paused ? "Resume" : "Pause"}
    </button>
  );
}
