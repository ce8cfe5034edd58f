/** Moves the keyboard focus when a side panel opens and closes. */
import { navigate } from "../state/route.js";

/** Marks the element that opened a panel, so that it gets the focus back. */
export function rememberOpener(element: Element): void {
  document.querySelector("[data-opened]")?.removeAttribute("data-opened");
  element.setAttribute("data-opened", "");
}

/** Whether fields open a keyboard on the screen, which covers much of the page. */
export function keyboardOnScreen(): boolean {
  return matchMedia("(pointer: coarse)").matches;
}

/** Moves the focus to the question field before the focused button disappears. On touch screens, moves it to the messages, so that no keyboard opens. */
export function focusQuestion(): void {
  const options: FocusOptions & { focusVisible?: boolean } = { preventScroll: true, ...(keyboardOnScreen() && { focusVisible: false }) };
  document.querySelector<HTMLElement>(keyboardOnScreen() ? ".messages" : "#question")?.focus(options);
}

/** Closes the panel and returns the focus to the element that opened it. */
export function closePanel(): void {
  const opener = document.querySelector<HTMLElement>("[data-opened]");
  const restore = () => (opener?.isConnected ? opener : document.querySelector<HTMLElement>("#question, main"))?.focus();
  // Not before the panel has closed: on a narrow screen, it hides the element.
  addEventListener("hashchange", () => requestAnimationFrame(restore), { once: true });
  navigate({ panel: null });
}
