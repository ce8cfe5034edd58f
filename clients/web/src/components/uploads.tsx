/** The running uploads, and those that failed for this conversation. */
import { size } from "../lib/format.js";
import { route } from "../state/route.js";
import { type Upload, dismissUpload, pauseUpload, resumeUpload, uploads } from "../state/uploads.js";

const STATES: Partial<Record<Upload["state"], string>> = { queued: ", waiting for others", paused: ", paused" };

export function Uploads() {
  const shown = uploads.value.filter(({ state, place }) => state !== "failed" || place === route.value.session);
  if (shown.length === 0) return null;
  return (
    <section aria-label="Uploads">
      <ul class="cards">
        {shown.map((upload) => (
          <li key={upload.key} class="card">
            <div class="row">
              <span class="title">{upload.name}</span>
              {upload.error === null && upload.sent < upload.size && <PauseButton upload={upload} />}
              {(upload.error !== null || upload.sent < upload.size) && (
                <button class="quiet" aria-label={`${upload.error === null ? "Cancel" : "Dismiss"} ${upload.name}`} onClick={() => dismissUpload(upload.key)}>
                  ✕
                </button>
              )}
            </div>
            {upload.error === null ? (
              <>
                {upload.page ? (
                  <progress aria-label={`Converting ${upload.name}`} max={upload.page[1]} value={upload.page[0] - 1} />
                ) : (
                  <progress aria-label={`Uploading ${upload.name}`} max={upload.size || 1} value={upload.sent} />
                )}
                <p class="note">{progressOf(upload)}</p>
              </>
            ) : (
              <p class="bad" role="alert">
                {upload.error}
              </p>
            )}
          </li>
        ))}
      </ul>
    </section>
  );
}

function progressOf(upload: Upload): string {
  if (upload.sent < upload.size) return `${size(upload.sent)} of ${size(upload.size)} uploaded${STATES[upload.state] ?? ""}`;
  const page = upload.page ? `: page ${upload.page[0]} of ${upload.page[1]}` : "";
  return `${size(upload.size)} uploaded. The server takes the text out of it${page}.`;
}

function PauseButton({ upload: { key, name, state } }: { upload: Upload }) {
  const paused = state === "paused";
  return (
    <button class="quiet small" aria-label={`${paused ? "Resume" : "Pause"} ${name}`} onClick={() => (paused ? resumeUpload : pauseUpload)(key)}>
      {paused ? "Resume" : "Pause"}
    </button>
  );
}
