/** Where the focus goes when a panel beside the dialogue opens and closes. */
import { navigate } from "../state/route.js";

/** Remembers what opened a panel: the focus goes back there. */
export function rememberOpener(element: Element): void {
  document.querySelector("[data-opened]")?.removeAttribute("data-opened");
  element.setAttribute("data-opened", "");
}

/** Closes the panel, and gives the focus back to what opened it. */
export function closePanel(): void {
  const opener = document.querySelector<HTMLElement>("[data-opened]");
  navigate({ panel: null });
  requestAnimationFrame(() => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("#question, main"))?.focus());
}
