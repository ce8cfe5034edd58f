/** Formats numbers, times and sizes for display. */
const wholeNumber = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const wholePercent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 0 });
const oneDecimal = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const threeDigitNumber = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (n: number): string => wholeNumber.format(n);
export const percent = (n: number): string => (n > 0 && n < 0.01 ? "< 1%" : wholePercent.format(n));
export const threeDigits = (n: number): string => threeDigitNumber.format(n);

export function plural(n: number, one: string, more = `${one}s`): string {
  return `${count(n)} ${n === 1 ? one : more}`;
}

/** A size as file managers show it: "4 GB", "1.5 MB", "157 KB", with units of 1,024. */
export function size(bytes: number): string {
  for (const [unit, power] of [["GB", 3], ["MB", 2], ["KB", 1]] as const) {
    const amount = bytes / 1024 ** power;
    if (amount >= 1) return `${amount < 9.95 ? oneDecimal.format(amount) : count(amount)} ${unit}`;
  }
  return plural(bytes, "byte");
}

/** Tokens of a word, on average. */
const WORD = 4 / 3;
const PAGE = 300; // words

export const wordsOf = (tokens: number): number => Math.round(tokens / WORD);
export const tokensOf = (words: number): number => Math.round(words * WORD);

/** A number of tokens in pages of 300 words: "about 310 pages", "about half a page". */
export function pages(tokens: number): string {
  const pages = tokens / WORD / PAGE;
  if (pages < 0.3) return "a few lines";
  if (pages < 0.75) return "about half a page";
  return `about ${plural(pages < 10 ? Math.round(pages) : Number(pages.toPrecision(2)), "page")}`;
}

export function duration(seconds: number): string {
  if (seconds < 1.5) return "a second";
  if (seconds < 90) return `${Math.round(seconds)} seconds`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} minutes`;
  return seconds < 129_600 ? `${Math.round(seconds / 3600)} hours` : `${Math.round(seconds / 86_400)} days`;
}

export function ago(unix: number): string {
  const seconds = Math.max(0, Date.now() / 1000 - unix);
  if (seconds < 45) return "just now";
  return seconds < 90 ? "a minute ago" : `${duration(seconds)} ago`;
}
