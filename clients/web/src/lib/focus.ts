/** Moves the keyboard focus when a side panel opens and closes. */
import { navigate } from "../state/route.js";

/** Marks the element that opened a panel, so that it gets the focus back. */
export function rememberOpener(element: Element): void {
  document.querySelector("[data-opened]")?.removeAttribute("data-opened");
  element.setAttribute("data-opened", "");
}

/** Closes the panel and returns the focus to the element that opened it. */
export function closePanel(): void {
  const opener = document.querySelector<HTMLElement>("[data-opened]");
  const restore = () => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("#question, main"))?.focus();
  // Not before the panel has closed: on a narrow screen, it hides the element.
  addEventListener("hashchange", () => requestAnimationFrame(restore), { once: true });
  navigate({ panel: null });
}
