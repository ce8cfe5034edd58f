/** The start view: upload files, or choose documents, and start a conversation about them. */
import { signal } from "@preact/signals";
import type { Document } from "everlong-client";
import { askConfirmation } from "../components/dialogs.js";
import { LoadMore } from "../components/load-more.js";
import { Loading } from "../components/loading.js";
import { Notes } from "../components/notes.js";
import { ReadingProgress } from "../components/reading-progress.js";
import { openPaste } from "../components/upload-dialogs.js";
import { Uploads } from "../components/uploads.js";
import { chooseFiles } from "../lib/files.js";
import { rememberOpener } from "../lib/focus.js";
import { pages, plural, size } from "../lib/format.js";
import { formatNames } from "../lib/formats.js";
import { dragging } from "../lib/transfer.js";
import { createSession, documents, formats, loadMore, loaded, model, nameOf, nextPages, removeDocument, showErrors } from "../state/library.js";
import { hrefTo } from "../state/route.js";
import { uploadFiles } from "../state/uploads.js";
import { caution, promise } from "./basis.js";
import { MenuButton } from "./sidebar.js";

const selected = signal<readonly string[]>([]);

/** Opens the browser's file dialog. `use` gets the chosen files; by default they are uploaded, and get a conversation. */
export function chooseDocuments(use: (files: File[]) => Promise<void> = uploadFiles): void {
  // Files of other types can still be dropped, or chosen under "all files": the server detects their format.
  const accept = (formats.value?.data ?? []).flatMap(({ extensions, media_types }) => [...extensions, ...media_types]).join(",");
  chooseFiles({ accept, multiple: true }, use);
}

export function Home() {
  const ids = selected.value.filter((id) => documents.value.has(id));
  const toggle = (id: string) => (selected.value = ids.includes(id) ? ids.filter((each) => each !== id) : [...ids, id]);
  return (
    <div class="home">
      <header class="bar">
        <MenuButton />
        <h1>Ask about a long text</h1>
      </header>
      <div class={dragging.value ? "drop over" : "drop"}>
        <p class="large with-mouse">Drop one or several documents here</p>
        <p class="large without-mouse">Choose documents to ask about</p>
        <div class="choices">
          <button class="main" onClick={() => chooseDocuments()}>
            Choose files
          </button>
          <button onClick={openPaste}>Paste a text</button>
        </div>
        <AcceptedFormats />
        <p class="note">
          {promise(model.value)} {caution(model.value)}
        </p>
      </div>
      <Uploads />
      {documents.value.size > 0 && (
        <section aria-labelledby="shelf">
          <div class="row shelf">
            <h2 id="shelf">Documents</h2>
            <Selection ids={ids} />
          </div>
          <ul class="cards">
            {[...documents.value.values()].map((document) => (
              <DocumentCard key={document.id} document={document} checked={ids.includes(document.id)} toggle={() => toggle(document.id)} />
            ))}
          </ul>
          {nextPages.value.documents && <LoadMore items=".cards label input" label="Older documents" load={() => showErrors(() => loadMore("documents"))} />}
        </section>
      )}
      {!loaded.value && <Loading what="your documents" />}
    </div>
  );
}

function AcceptedFormats() {
  if (!formats.value) return null;
  return (
    <details class="note formats">
      <summary>
        {formatNames(formats.value)} of up to {size(formats.value.max_bytes)}
      </summary>
      <ul>
        {formats.value.data.map(({ id, name, extensions }) => (
          <li key={id}>
            {name.replace(/^an? /, "")} <span class="extensions">{extensions.join(" ")}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}

/** What can be done with the selected documents. */
function Selection({ ids }: { ids: readonly string[] }) {
  if (ids.length === 0) return documents.value.size > 1 ? <span class="note">Select several to ask about them together.</span> : null;
  return (
    <>
      <button onClick={() => void showErrors(() => removeDocuments(ids))}>Delete{ids.length > 1 ? ` ${ids.length}` : ""}</button>
      <button
        class="main"
        onClick={() =>
          void showErrors(async () => {
            await createSession(ids);
            selected.value = [];
          })
        }
      >
        {ids.length > 1 ? `Talk about ${ids.length} documents` : "Talk about it"}
      </button>
    </>
  );
}

async function removeDocuments(ids: readonly string[]): Promise<void> {
  const [name, detail] =
    ids.length === 1
      ? [nameOf(ids[0]!), "This deletes its text and its index, so answers will have no evidence from it. Conversations keep their memory."]
      : [plural(ids.length, "document"), "This deletes their texts and indexes, so answers will have no evidence from them. Conversations keep their memories."];
  if (await askConfirmation(`Delete ${name}?`, detail, "Delete")) for (const id of ids) await removeDocument(id);
}

function DocumentCard({ document, checked, toggle }: { document: Document; checked: boolean; toggle: () => void }) {
  const { id, status } = document;
  const name = nameOf(id);
  return (
    <li class="card">
      <div class="row document-row">
        <label class="check">
          <input type="checkbox" checked={checked} disabled={status === "failed"} onChange={toggle} />
          <span class="title">{name}</span>
        </label>
        {status !== "failed" && (
          <button class="small" aria-label={`Ask about ${name}`} onClick={() => void showErrors(() => createSession([id]))}>
            Ask
          </button>
        )}
        <a
          class="button quiet small"
          href={hrefTo({ session: null, panel: { kind: "text", document: id, start: null, end: null } })}
          onClick={(event) => rememberOpener(event.currentTarget)}
          aria-label={`Read ${name}`}
        >
          Read
        </a>
        <button class="quiet small" aria-label={`Delete ${name}`} onClick={() => void showErrors(() => removeDocuments([id]))}>
          Delete
        </button>
      </div>
      {status === "ready" ? (
        <p class="note">
          {size(document.bytes)} · {pages(document.tokens)}
        </p>
      ) : (
        <ReadingProgress document={document} />
      )}
      <Notes notes={document.notes} summary={`${plural(document.notes.length, "note")} on its text`} />
    </li>
  );
}
