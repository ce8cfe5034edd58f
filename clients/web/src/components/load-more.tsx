/** A button at the end of a list that loads its next page. */
import { useState } from "preact/hooks";

/** Calls `load`, then moves the focus to the first new item. `items` is a CSS selector of the list's items. */
export function LoadMore({ items, label, load }: { items: string; label: string; load: () => Promise<void> }) {
  const [busy, setBusy] = useState(false);
  const onClick = async () => {
    if (busy) return;
    setBusy(true);
    const before = document.querySelectorAll(items).length;
    await load();
    setBusy(false);
    requestAnimationFrame(() => document.querySelectorAll<HTMLElement>(items)[before]?.focus());
  };
  return (
    <button class="quiet more" aria-disabled={busy} onClick={() => void onClick()}>
      {busy ? "Loading…" : label}
    </button>
  );
}
