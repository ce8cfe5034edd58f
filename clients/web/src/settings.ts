/** What this browser remembers of how its owner likes the page. */
import { always } from "./kept.js";

const SINGLE_KEYS = "everlong.keys";

export function singleKeys(): boolean {
  return always.get(SINGLE_KEYS) !== "off";
}

export function setSingleKeys(on: boolean): void {
  always.set(SINGLE_KEYS, on ? "on" : "off");
}

