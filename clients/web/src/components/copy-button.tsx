/** A button that copies a text, and says so. */
import { useEffect, useState } from "preact/hooks";
import { UserError } from "../state/errors.js";
import { showErrors } from "../state/library.js";

const SHOWN = 2000; // ms

/** `html`: returns the same as HTML, for programs that take it. */
export function CopyButton({ text, html, label = "Copy" }: { text: string; html?: (button: HTMLElement) => string; label?: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = setTimeout(() => setCopied(false), SHOWN);
    return () => clearTimeout(timer);
  }, [copied]);
  return (
    <button
      type="button"
      class="quiet small"
      aria-label={copied ? "Copied" : label}
      onClick={({ currentTarget }) =>
        void showErrors(async () => {
          await copy({ "text/plain": text, ...(html && { "text/html": html(currentTarget) }) });
          setCopied(true);
        })
      }
    >
      {copied ? "Copied" : "Copy"}
    </button>
  );
}

/** Copies a text in several formats; the keys of `types` are MIME types. Browsers offer the clipboard API on secure addresses only. Elsewhere, fills a `copy` event. */
async function copy(types: Record<string, string>): Promise<void> {
  if (navigator.clipboard && globalThis.ClipboardItem) return navigator.clipboard.write([new ClipboardItem(types)]);
  const focused = document.activeElement;
  const area = document.createElement("textarea"); // browsers copy only if something is selected
  area.value = "-";
  area.className = "unseen";
  area.addEventListener("copy", (event) => {
    for (const [type, text] of Object.entries(types)) event.clipboardData?.setData(type, text);
    event.preventDefault();
  });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  if (!done) throw new UserError("The browser does not let this page copy.");
}
