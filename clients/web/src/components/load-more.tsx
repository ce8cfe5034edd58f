/** The end of a list that the server has more of. */
import { useState } from "preact/hooks";

/** A button that loads the rest; the focus goes on to the first of what came. `items`: a selector of the list's. */
export function LoadMore({ items, words, work }: { items: string; words: string; work: () => Promise<void> }) {
  const [busy, setBusy] = useState(false);
  const onClick = async () => {
    if (busy) return;
    setBusy(true);
    const before = document.querySelectorAll(items).length;
    await work();
    setBusy(false);
    requestAnimationFrame(() => document.querySelectorAll<HTMLElement>(items)[before]?.focus());
  };
  return (
    <button class="quiet more" aria-disabled={busy} onClick={() => void onClick()}>
      {busy ? "Loading…" : words}
    </button>
  );
}
