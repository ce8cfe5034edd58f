/** The user's settings, stored in this browser. */
import { signal } from "@preact/signals";
import type { Sampling } from "everlong-client";
import { persistent } from "./storage.js";

const SINGLE_KEYS = "everlong.keys";
const ANSWERS = "everlong.answers";
const THEME = "everlong.theme";

export function singleKeys(): boolean {
  return persistent.get(SINGLE_KEYS) !== "off";
}

export function setSingleKeys(on: boolean): void {
  persistent.set(SINGLE_KEYS, on ? "on" : "off");
}

/** How questions are answered. The server chooses what is null. */
export interface AnswerSettings {
  maxTokens: number | null;
  temperature: number | null;
  passages: number | null;
}

export const answerSettings = signal<AnswerSettings>(storedAnswers());

function storedAnswers(): AnswerSettings {
  const defaults = { maxTokens: null, temperature: null, passages: null };
  try {
    return { ...defaults, ...(JSON.parse(persistent.get(ANSWERS) ?? "{}") as Partial<AnswerSettings>) };
  } catch {
    return defaults; // damaged
  }
}

export function setAnswers(change: Partial<AnswerSettings>): void {
  answerSettings.value = { ...answerSettings.value, ...change };
  persistent.set(ANSWERS, JSON.stringify(answerSettings.value));
}

/** The settings as parameters of a message. */
export function sampling(): Sampling {
  const { maxTokens, temperature, passages } = answerSettings.value;
  return {
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...(temperature === null ? {} : { temperature }),
    ...(passages === null ? {} : { recall: passages === 0 ? (false as const) : { passages } }),
  };
}

export type Theme = "light dark" | "light" | "dark";

export const theme = signal<Theme>(storedTheme());

function storedTheme(): Theme {
  const stored = persistent.get(THEME);
  return stored === "light" || stored === "dark" ? stored : "light dark";
}

export function setTheme(chosen: Theme): void {
  theme.value = chosen;
  persistent.set(THEME, chosen === "light dark" ? null : chosen);
}
