/** Where the focus goes when a panel beside the dialogue opens and closes. */
import { go } from "./route.js";

/** Remembers what opened a panel: the focus goes back there. */
export function opened(element: Element): void {
  document.querySelector("[data-opened]")?.removeAttribute("data-opened");
  element.setAttribute("data-opened", "");
}

/** Closes the panel, and gives the focus back to what opened it. */
export function closePanel(): void {
  const opener = document.querySelector<HTMLElement>("[data-opened]");
  go({ panel: null });
  requestAnimationFrame(() => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("#question, main"))?.focus());
}
