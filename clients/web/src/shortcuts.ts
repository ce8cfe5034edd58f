/** What single keys do. Who types or speaks to the page can turn them off (WCAG 2.1.4). */
import { confirming, helping } from "./dialogs.js";
import { closePanel } from "./focus.js";
import { choose } from "./home.js";
import { sessions } from "./library.js";
import { address, go, place } from "./route.js";
import { singleKeys } from "./settings.js";
import { sidebar } from "./sidebar.js";

/** Whether a key belongs to what is being composed, as Chinese is; Safari tells so of the last one by its code alone. */
export function composing(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}

export function pressed(event: KeyboardEvent): void {
  const typing = (event.target as HTMLElement).closest("input:not([type=range], [type=checkbox]), textarea, select");
  if (event.defaultPrevented || composing(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (sidebar.value) sidebar.value = false;
    else if (place.value.panel) closePanel();
    else if (typing) (typing as HTMLElement).blur();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !singleKeys()) return;
  const { session, panel } = place.value;
  const ids = sessions.value.map(({ id }) => id);
  const beside = (step: number) => {
    const id = ids[session ? ids.indexOf(session) + step : 0];
    if (id) go({ session: id, panel: null });
  };
  const actions: Record<string, () => void> = {
    n: () => go({ session: null, panel: null }),
    // Not before the key has gone down does a browser take it for the person's wish to choose a file.
    u: () => addEventListener("keyup", choose, { once: true }),
    m: () => session && (panel?.kind === "memory" ? closePanel() : (location.hash = address({ panel: { kind: "memory" } }))),
    j: () => beside(1),
    k: () => beside(-1),
    "/": () => document.querySelector<HTMLElement>("#question")?.focus(),
    "?": () => (helping.value = true),
  };
  const action = actions[event.key];
  if (!action || confirming.value) return;
  event.preventDefault();
  action();
}
