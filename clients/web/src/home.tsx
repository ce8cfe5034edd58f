/** Where a conversation begins: with files that are dropped or chosen, or with documents that are there. */
import { signal } from "@preact/signals";
import { confirmed } from "./dialogs.js";
import { opened } from "./focus.js";
import { attempt, begin, documents, drop, formats, loaded, more, nameOf, older, removeDocument, take, uploads } from "./library.js";
import { More } from "./more.js";
import { many, size } from "./numbers.js";
import { ReadingOf } from "./reading.js";
import { address } from "./route.js";
import { Menu } from "./sidebar.js";

const chosen = signal<readonly string[]>([]);
/** Whether files are being dragged over the page, wherever. */
const over = signal(false);

addEventListener("dragover", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  over.value = true;
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) over.value = false;
});
addEventListener("drop", (event) => {
  const files = [...(event.dataTransfer?.files ?? [])];
  over.value = false;
  if (files.length === 0) return;
  event.preventDefault(); // or the browser would open them
  void attempt(() => take(files));
});

/** Opens the browser's dialog for files. */
export function choose(): void {
  const input = document.createElement("input");
  input.type = "file";
  input.multiple = true;
  input.hidden = true;
  // Files that a browser knows no kind of can still be dropped, or chosen under "all files": the server looks into them.
  input.accept = (formats.value?.data ?? []).flatMap(({ extensions, media_types }) => [...extensions, ...media_types]).join(",");
  input.onchange = () => {
    input.remove();
    void attempt(() => take([...(input.files ?? [])]));
  };
  input.oncancel = () => input.remove();
  // In the page while the dialog is open: outside it is garbage, and once collected never says what was chosen.
  document.body.append(input);
  input.click();
}

const NAMES = { text: "Text", pdf: "PDF", docx: "Word", epub: "EPUB", html: "HTML" };

function listed(names: readonly string[]): string {
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names.join();
}

export function Home() {
  const ids = chosen.value.filter((id) => documents.value.has(id));
  const toggle = (id: string) => (chosen.value = ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id]);
  return (
    <div class="home">
      <header class="bar">
        <Menu />
        <h1>Ask a long text</h1>
      </header>
      <div class={over.value ? "drop over" : "drop"}>
        <p class="large">Drop one or several documents here</p>
        <button class="main" onClick={choose}>
          Choose files
        </button>
        <p class="note">
          {formats.value ? `${listed(formats.value.data.map(({ id }) => NAMES[id]))} of up to ${size(formats.value.max_bytes)}` : "Text of any length"}: a
          memory of fixed size reads it once, and answers come with the passages that they rest on.
        </p>
      </div>
      {uploads.value.length > 0 && (
        <section aria-label="Uploads">
          <ul class="cards">
            {uploads.value.map((upload) => (
              <li key={upload.key} class="card">
                <div class="row">
                  <span class="title">{upload.name}</span>
                  {upload.error !== null && (
                    <button class="quiet" aria-label={`Dismiss ${upload.name}`} onClick={() => drop(upload.key)}>
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
      )}
      {documents.value.size > 0 && (
        <section aria-labelledby="shelf">
          <div class="row">
            <h2 id="shelf">Already here</h2>
            <button
              class={ids.length ? "main" : ""}
              disabled={ids.length === 0}
              onClick={() =>
                void attempt(async () => {
                  await begin(ids);
                  chosen.value = [];
                })
              }
            >
              {ids.length > 1 ? `Talk about ${ids.length} documents` : "Talk about it"}
            </button>
          </div>
          <ul class="cards">
            {[...documents.value.values()].map((document) => (
              <li key={document.id} class="card">
                <div class="row">
                  <label class="check">
                    <input type="checkbox" checked={ids.includes(document.id)} disabled={document.status === "failed"} onChange={() => toggle(document.id)} />
                    <span class="title">{nameOf(document.id)}</span>
                  </label>
                  <a href={address({ session: null, panel: { kind: "text", document: document.id, start: null, end: null } })} onClick={(event) => opened(event.currentTarget)} aria-label={`Read ${nameOf(document.id)}`}>
                    Read
                  </a>
                  <button
                    class="quiet"
                    aria-label={`Delete ${nameOf(document.id)}`}
                    onClick={() =>
                      void attempt(async () => {
                        const detail = "Its text and its index go, so answers have no evidence from it any more. Conversations keep the memory that they have.";
                        if (await confirmed(`Delete ${nameOf(document.id)}?`, detail, "Delete")) await removeDocument(document.id);
                      })
                    }
                  >
                    Delete
                  </button>
                </div>
                {document.status === "ready" ? (
                  <p class="note">
                    {size(document.bytes)} · {many(document.tokens, "token")}
                  </p>
                ) : (
                  <ReadingOf document={document} />
                )}
              </li>
            ))}
          </ul>
          {more.value.documents && <More items=".cards label input" words="Older documents" work={() => attempt(() => older("documents"))} />}
        </section>
      )}
      {!loaded.value && <p class="note">Asking the server what is there…</p>}
    </div>
  );
}
