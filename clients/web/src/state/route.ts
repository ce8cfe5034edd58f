/** The current view, stored in the address after `#`, so that reload and Back restore it. */
import { signal } from "@preact/signals";

export type Panel = { kind: "memory" } | { kind: "text"; document: string; start: number | null; end: number | null };

export interface Place {
  session: string | null;
  panel: Panel | null;
}

export const route = signal<Place>(parse(location.hash));

addEventListener("hashchange", () => (route.value = parse(location.hash)));

function parse(hash: string): Place {
  const parts = hash.replace(/^#\/?/, "").split("/");
  const session = parts[0]?.startsWith("ses_") ? (parts.shift() as string) : null;
  if (parts[0] === "memory" && session) return { session, panel: { kind: "memory" } };
  if (!parts[0]?.startsWith("doc_")) return { session, panel: null };
  const [start, end] = (parts[1] ?? "").split("-").map(Number);
  const marked = parts[1] !== undefined && Number.isSafeInteger(start) && Number.isSafeInteger(end);
  return { session, panel: { kind: "text", document: parts[0], start: marked ? start! : null, end: marked ? end! : null } };
}

/** The address of a view. Fields that are left out keep their current values. */
export function hrefTo(to: Partial<Place>): string {
  const { session, panel } = { ...route.value, ...to };
  let hash = `#/${session ?? ""}`;
  if (panel?.kind === "memory") hash += "/memory";
  if (panel?.kind === "text") hash += `${session ? "/" : ""}${panel.document}${panel.start === null ? "" : `/${panel.start}-${panel.end}`}`;
  return hash;
}

export function navigate(to: Partial<Place>): void {
  location.hash = hrefTo(to);
}
