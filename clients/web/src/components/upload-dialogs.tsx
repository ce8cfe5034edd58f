/** Dialogs about uploads: what becomes of an archive, and a text that is pasted. */
import { signal } from "@preact/signals";
import { useRef } from "preact/hooks";
import { plural } from "../lib/format.js";
import { archiveQuestion } from "../state/archives.js";
import { showErrors } from "../state/library.js";
import { uploadFiles } from "../state/uploads.js";
import { Dialog } from "./dialogs.js";

export function ArchiveDialog() {
  const asked = archiveQuestion.value;
  if (!asked) return null;
  const { names, answer } = asked;
  return (
    <Dialog title={names.length === 1 ? `Upload ${names[0]}` : `Upload ${plural(names.length, "archive")}`} onClose={() => answer(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          answer(new FormData(event.currentTarget).has("each"));
        }}
      >
        <label class="check">
          <input type="checkbox" name="each" defaultChecked autofocus aria-describedby="each-help" />
          Each file of the archive as a document of its own
        </label>
        <p id="each-help" class="note">
          You can then ask about single files, and delete them. Otherwise, the archive becomes one document, with one file after the other.
        </p>
        <div class="buttons">
          <button type="button" onClick={() => answer(null)}>
            Cancel
          </button>
          <button class="main" type="submit">
            Upload
          </button>
        </div>
      </form>
    </Dialog>
  );
}

/** The text with which the dialog to paste one opens; null while it is closed. */
export const pasted = signal<string | null>(null);
/** The text of a dialog that was closed with Escape, perhaps by mistake. */
let unsent = "";

/** Opens the dialog with the text that it had when Escape closed it. */
export function openPaste(): void {
  pasted.value = unsent;
}

export function PasteDialog() {
  const text = useRef<HTMLTextAreaElement>(null);
  if (pasted.value === null) return null;
  const close = (kept = "") => {
    unsent = kept;
    pasted.value = null;
  };
  return (
    <Dialog title="Paste a text" onClose={() => close(text.current?.value)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          const fields = new FormData(event.currentTarget);
          const name = String(fields.get("name")).trim() || "Pasted text";
          close();
          void showErrors(() => uploadFiles([new File([String(fields.get("text"))], `${name}.txt`)]));
        }}
      >
        <label for="pasted-text">Text</label>
        <textarea ref={text} id="pasted-text" name="text" dir="auto" rows={8} required autofocus defaultValue={pasted.value} />
        <label for="pasted-name">Name</label>
        <input id="pasted-name" name="name" dir="auto" placeholder="Pasted text" maxLength={100} autocomplete="off" />
        <div class="buttons">
          <button type="button" onClick={() => close()}>
            Cancel
          </button>
          <button class="main" type="submit">
            Upload
          </button>
        </div>
      </form>
    </Dialog>
  );
}
