/** The start view: upload files, or choose documents, and start a conversation about them. */
import { signal } from "@preact/signals";
import type { Document, Formats } from "everlong-client";
import { askConfirmation } from "../components/dialogs.js";
import { LoadMore } from "../components/load-more.js";
import { ReadingProgress } from "../components/reading-progress.js";
import { Uploads } from "../components/uploads.js";
import { chooseFiles } from "../lib/files.js";
import { rememberOpener } from "../lib/focus.js";
import { pages, plural, size } from "../lib/format.js";
import { createSession, documents, formats, loadMore, loaded, model, nameOf, nextPages, removeDocument, showErrors } from "../state/library.js";
import { hrefTo } from "../state/route.js";
import { uploadFiles } from "../state/uploads.js";
import { caution, promise } from "./basis.js";
import { MenuButton } from "./sidebar.js";

const selected = signal<readonly string[]>([]);
/** Whether files are being dragged over the page. */
const dragging = signal(false);

addEventListener("dragover", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  dragging.value = true;
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) dragging.value = false;
});
addEventListener("drop", (event) => {
  const files = [...(event.dataTransfer?.files ?? [])];
  dragging.value = false;
  if (files.length === 0) return;
  event.preventDefault(); // else the browser would open the files
  void showErrors(() => uploadFiles(files));
});

/** Opens the browser's file dialog. `use` gets the chosen files; by default they are uploaded, and get a conversation. */
export function chooseDocuments(use: (files: File[]) => Promise<void> = uploadFiles): void {
  // Files of other types can still be dropped, or chosen under "all files": the server detects their format.
  const accept = (formats.value?.data ?? []).flatMap(({ extensions, media_types }) => [...extensions, ...media_types]).join(",");
  chooseFiles({ accept, multiple: true }, use);
}

const COMMON: Record<string, string> = { text: "Text", pdf: "PDF", docx: "Word", pptx: "PowerPoint", xlsx: "Excel", epub: "EPUB", html: "HTML" };

/** Returns the names of the common formats that the server accepts, and the number of others. */
function formatNames({ data }: Formats): string {
  const names = data.flatMap(({ id }) => COMMON[id] ?? []);
  const others = data.length - names.length;
  if (others > 0) names.push(plural(others, "other format"));
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names.join();
}

/** What is not in a document's text, folded up. */
function Notes({ document }: { document: Document }) {
  if (document.notes.length === 0) return null;
  return (
    <details class="note">
      <summary>{plural(document.notes.length, "note")} on its text</summary>
      <ul>
        {document.notes.map((note, index) => (
          <li key={index}>
            {note.page !== null && `Page ${note.page}: `}
            {note.part !== null && `${note.part}: `}
            {note.text}
          </li>
        ))}
      </ul>
    </details>
  );
}

export function Home() {
  const ids = selected.value.filter((id) => documents.value.has(id));
  const toggle = (id: string) => (selected.value = ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id]);
  return (
    <div class="home">
      <header class="bar">
        <MenuButton />
        <h1>Ask a long text</h1>
      </header>
      <div class={dragging.value ? "drop over" : "drop"}>
        <p class="large">Drop one or several documents here</p>
        <button class="main" onClick={() => chooseDocuments()}>
          Choose files
        </button>
        <p class="note">
          {formats.value ? `${formatNames(formats.value)} of up to ${size(formats.value.max_bytes)}` : "Text of any length"}.
          {" "}
          {promise(model.value)} {caution(model.value)}
        </p>
      </div>
      <Uploads />
      {documents.value.size > 0 && (
        <section aria-labelledby="shelf">
          <div class="row">
            <h2 id="shelf">Documents</h2>
            <button
              class={ids.length ? "main" : ""}
              disabled={ids.length === 0}
              onClick={() =>
                void showErrors(async () => {
                  await createSession(ids);
                  selected.value = [];
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
                  <a href={hrefTo({ session: null, panel: { kind: "text", document: document.id, start: null, end: null } })} onClick={(event) => rememberOpener(event.currentTarget)} aria-label={`Read ${nameOf(document.id)}`}>
                    Read
                  </a>
                  <button
                    class="quiet"
                    aria-label={`Delete ${nameOf(document.id)}`}
                    onClick={() =>
                      void showErrors(async () => {
                        const detail = "This deletes its text and its index, so answers will have no evidence from it. Conversations keep their memory.";
                        if (await askConfirmation(`Delete ${nameOf(document.id)}?`, detail, "Delete")) await removeDocument(document.id);
                      })
                    }
                  >
                    Delete
                  </button>
                </div>
                {document.status === "ready" ? (
                  <p class="note">
                    {size(document.bytes)} · {pages(document.tokens)}
                  </p>
                ) : (
                  <ReadingProgress document={document} />
                )}
                <Notes document={document} />
              </li>
            ))}
          </ul>
          {nextPages.value.documents && <LoadMore items=".cards label input" label="Older documents" load={() => showErrors(() => loadMore("documents"))} />}
        </section>
      )}
      {!loaded.value && <p class="note">Loading…</p>}
    </div>
  );
}
