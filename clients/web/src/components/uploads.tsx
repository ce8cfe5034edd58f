/** The running uploads, and those that failed. */
import { size } from "../lib/format.js";
import { dismissUpload, uploads } from "../state/uploads.js";

export function Uploads() {
  if (uploads.value.length === 0) return null;
  return (
    <section aria-label="Uploads">
      <ul class="cards">
        {uploads.value.map((upload) => (
          <li key={upload.key} class="card">
            <div class="row">
              <span class="title">{upload.name}</span>
              {upload.error !== null && (
                <button class="quiet" aria-label={`Dismiss ${upload.name}`} onClick={() => dismissUpload(upload.key)}>
                  ✕
                </button>
              )}
            </div>
            {upload.error === null ? (
              <>
                <progress aria-label={`Uploading ${upload.name}`} max={upload.size || 1} value={upload.sent} />
                <p class="note">
                  {size(upload.sent)} of {size(upload.size)} uploaded
                </p>
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
