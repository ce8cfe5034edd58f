/** A formula as MathML, which screen readers read. Temml is loaded with the first formula. */
import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";

type Temml = typeof import("temml").default;

const temml = signal<Temml | null>(null);
let loading = false;

async function load(): Promise<void> {
  if (loading) return;
  loading = true;
  try {
    temml.value = (await import("temml")).default;
  } catch {
    loading = false; // the source is shown; the next formula tries again
  }
}

/** Shows LaTeX; as its source until Temml is loaded, and if it has an error. */
export function Formula({ source, block }: { source: string; block: boolean }) {
  const place = useRef<HTMLElement>(null);
  const renderer = temml.value;
  useLayoutEffect(() => {
    if (!renderer) return void load();
    try {
      renderer.render(source, place.current!, { displayMode: block, throwOnError: true, maxExpand: 200 });
    } catch {
      place.current!.textContent = source;
    }
  }, [renderer, source, block]);
  return (
    <span class={block ? "formula block" : "formula"}>
      <code ref={place}>{renderer ? null : source}</code>
    </span>
  );
}
