/** A button that copies a text, and says so. */
import { useEffect, useState } from "preact/hooks";
import { UserError } from "../state/errors.js";
import { showErrors } from "../state/library.js";

const SHOWN = 2000; // ms

export function CopyButton({ text, label = "Copy" }: { text: string; label?: string }) {
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
      onClick={() =>
        void showErrors(async () => {
          await copy(text);
          setCopied(true);
        })
      }
    >
      {copied ? "Copied" : "Copy"}
    </button>
  );
}

/** Copies a text. Without the clipboard's interface, which browsers offer to secure addresses only, selects and copies it. */
async function copy(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const focused = document.activeElement;
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "unseen";
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  if (!done) throw new UserError("The browser does not let this page copy.");
}
