/** A button that opens a list of further actions. It closes after an action, with Escape, and when the focus leaves it. */
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";

export function Menu({ label, sign, children }: { label: string; sign: string; children: ComponentChildren }) {
  const [open, setOpen] = useState(false);
  const element = useRef<HTMLDivElement>(null);
  // Not after the next paint: by then, the menu can be gone.
  useLayoutEffect(() => {
    if (!open) return;
    const menu = element.current!;
    const closeOutside = (event: Event) => !menu.contains(event.target as Node) && setOpen(false);
    addEventListener("pointerdown", closeOutside);
    addEventListener("focusin", closeOutside);
    return () => {
      removeEventListener("pointerdown", closeOutside);
      removeEventListener("focusin", closeOutside);
    };
  }, [open]);
  return (
    <div
      class="actions-menu"
      ref={element}
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !open) return;
        event.preventDefault();
        setOpen(false);
        element.current!.querySelector("button")!.focus();
      }}
    >
      <button aria-label={label} title={label} aria-expanded={open} onClick={() => setOpen(!open)}>
        {sign}
      </button>
      {open && (
        // Before the action, the button gets the focus: a dialog that the action opens gives it back there.
        <div class="list" onClickCapture={() => element.current!.querySelector("button")!.focus()} onClick={() => setOpen(false)}>
          {children}
        </div>
      )}
    </div>
  );
}
