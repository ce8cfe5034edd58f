/** The user's settings, stored in this browser. */
import { persistent } from "./storage.js";

const SINGLE_KEYS = "everlong.keys";

export function singleKeys(): boolean {
  return persistent.get(SINGLE_KEYS) !== "off";
}

export function setSingleKeys(on: boolean): void {
  persistent.set(SINGLE_KEYS, on ? "on" : "off");
}

