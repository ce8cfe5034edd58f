/** What this browser remembers of how its owner likes the page. */
const SINGLE_KEYS = "everlong.keys";

export function singleKeys(): boolean {
  return localStorage.getItem(SINGLE_KEYS) !== "off";
}

export function setSingleKeys(on: boolean): void {
  localStorage.setItem(SINGLE_KEYS, on ? "on" : "off");
}

