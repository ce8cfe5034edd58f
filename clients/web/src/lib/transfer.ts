/** Files that are dropped on the page, and files and texts that are pasted. */
import { signal } from "@preact/signals";
import { pasted } from "../components/upload-dialogs.js";
import { uploadHere } from "../state/branches.js";
import { showErrors } from "../state/library.js";
import { route } from "../state/route.js";
import { droppedFiles } from "./files.js";

/** Whether files are being dragged over the page. */
export const dragging = signal(false);

addEventListener("dragover", (event) => {
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault();
  dragging.value = true;
});
addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) dragging.value = false;
});
addEventListener("drop", (event) => {
  dragging.value = false;
  if (!event.dataTransfer?.types.includes("Files")) return;
  event.preventDefault(); // else the browser would open the files
  const files = droppedFiles(event.dataTransfer);
  void showErrors(async () => uploadHere(await files));
});

/** Whether the text is just the names or paths of the files: file managers copy both. */
function isNamed(files: readonly File[], text: string): boolean {
  const names = text.split(/[\r\n]+/).map((line) => line.trim().split(/[/\\]/).at(-1));
  return files.every(({ name }) => names.includes(name)) && names.every((name) => !name || files.some((file) => file.name === name));
}

// Files can be pasted everywhere; a text only where it is not pasted into a field.
addEventListener("paste", (event) => {
  if (document.querySelector("dialog[open]") || !event.clipboardData) return;
  const files = [...event.clipboardData.files];
  const text = event.clipboardData.getData("text/plain");
  const typing = event.target instanceof Element && event.target.closest("input, textarea");
  if (files.length && (!text || isNamed(files, text))) void showErrors(() => uploadHere(files));
  else if (text.trim() && !typing && route.value.session === null) pasted.value = text;
  else return;
  event.preventDefault();
});
