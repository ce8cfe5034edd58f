/** Keyboard shortcuts. The user can turn off those of a single letter (WCAG 2.1.4). */
import { confirmation, helpOpen } from "../components/dialogs.js";
import { groups } from "../state/conversations.js";
import { hrefTo, navigate, route } from "../state/route.js";
import { singleKeys } from "../state/settings.js";
import { chooseDocuments } from "../views/home.js";
import { sidebarOpen } from "../views/sidebar.js";
import { closePanel } from "./focus.js";

/** Whether the key is part of an input method's composition (as for Chinese). Safari marks the last key only by its code. */
export function isComposing(event: KeyboardEvent): boolean {
  return event.isComposing || event.keyCode === 229;
}

export function onKeyDown(event: KeyboardEvent): void {
  const typing = (event.target as HTMLElement).closest("input:not([type=range], [type=checkbox]), textarea, select");
  if (event.defaultPrevented || isComposing(event) || document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") {
    if (sidebarOpen.value) sidebarOpen.value = false;
    else if (route.value.panel) closePanel();
    else if (typing) (typing as HTMLElement).blur();
    return;
  }
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !singleKeys()) return;
  const { session, panel } = route.value;
  const ids = groups.value.flatMap(({ sessions }) => sessions.map(({ id }) => id));
  const goToNeighbour = (step: number) => {
    const id = ids[session ? ids.indexOf(session) + step : 0];
    if (id) navigate({ session: id, panel: null });
  };
  const actions: Record<string, () => void> = {
    n: () => navigate({ session: null, panel: null }),
    // On keyup, because browsers open a file dialog only after a complete user action.
    u: () => addEventListener("keyup", () => chooseDocuments(), { once: true }),
    m: () => session && (panel?.kind === "memory" ? closePanel() : (location.hash = hrefTo({ panel: { kind: "memory" } }))),
    j: () => goToNeighbour(1),
    k: () => goToNeighbour(-1),
    "/": () => document.querySelector<HTMLElement>("#question")?.focus(),
    "?": () => (helpOpen.value = true),
  };
  const action = actions[event.key];
  if (!action || confirmation.value) return;
  event.preventDefault();
  action();
}
