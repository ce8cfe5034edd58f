/** The browser's dialog to choose files. */
import { UserError } from "../state/errors.js";
import { showErrors } from "../state/library.js";

/** Opens the dialog, and calls `use` with the chosen files. `accept`: types and extensions, separated by commas. */
export function chooseFiles({ accept, multiple = false }: { accept: string; multiple?: boolean }, use: (files: File[]) => Promise<void>): void {
  const input = document.createElement("input");
  Object.assign(input, { type: "file", accept, multiple, hidden: true });
  input.onchange = () => {
    input.remove();
    const files = [...(input.files ?? [])];
    if (files.length) void showErrors(() => use(files));
  };
  input.oncancel = () => input.remove();
  // Attached to the page while the dialog is open: a detached element could be garbage-collected before its event.
  document.body.append(input);
  input.click();
}

/** Returns the dropped files, those in dropped folders included. Leaves out hidden ones, which the system made. Throws `UserError` if there are none. */
export async function droppedFiles({ items, files }: DataTransfer): Promise<File[]> {
  // Both lists are empty after the event.
  const [flat, entries] = [[...files], [...items].map((item) => item.webkitGetAsEntry())];
  if (!entries.some((entry) => entry?.isDirectory)) return flat;
  const found = (await Promise.all(entries.map((entry) => (entry ? filesIn(entry) : [])))).flat();
  if (found.length === 0) throw new UserError("There is no file in what you dropped.");
  return found;
}

async function filesIn(entry: FileSystemEntry): Promise<File[]> {
  if (entry.name.startsWith(".")) return [];
  const refuse = () => new UserError(`The browser cannot read ${entry.name}, so nothing was uploaded. Drop the other files again without it.`);
  if (entry.isFile) return [await new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, () => reject(refuse())))];
  const reader = (entry as FileSystemDirectoryEntry).createReader();
  const found: File[] = [];
  for (;;) {
    const some = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, () => reject(refuse()))); // a browser returns 100 at most
    if (some.length === 0) return found;
    for (const each of some) found.push(...(await filesIn(each)));
  }
}
