/** The browser's dialog to choose files. */
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
