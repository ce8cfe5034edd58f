/** The user's settings, stored in this browser. */
import { signal } from "@preact/signals";
import type { Model, Sampling } from "everlong-client";
import { tokensOf } from "../lib/format.js";
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
  /** How many words of the documents the model gets with a question; 0: the documents are not searched. */
  words: number | null;
  /** The language of answers, as the user calls it. */
  language: string | null;
  /** The model of new conversations, if the server has several. */
  model: string | null;
}

export const answerSettings = signal<AnswerSettings>(storedAnswers());

function storedAnswers(): AnswerSettings {
  const defaults = { maxTokens: null, temperature: null, words: null, language: null, model: null };
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

/** As many passages as every server accepts for one question. */
const PASSAGES = 32;

/** The settings as parameters of a message to a model. */
export function sampling(model: Model | null): Sampling {
  const { maxTokens, temperature, words, language } = answerSettings.value;
  return {
    ...(maxTokens === null ? {} : { max_tokens: maxTokens }),
    ...(temperature === null ? {} : { temperature }),
    ...(words === null ? {} : { recall: words === 0 ? (false as const) : { passages: Math.max(model?.recall_passages ?? 0, PASSAGES), tokens: Math.min(tokensOf(words), model?.max_recall_tokens ?? Infinity) } }),
    ...(language ? { instructions: `Answer in ${language}.` } : {}),
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
