/** An answer to copy: its text, with the numbers of its sources, and a note for each of them. */
import type { Message } from "everlong-client";
import { percent } from "../lib/format.js";
import { annotated } from "../lib/markdown.js";
import { documents, nameOf } from "../state/library.js";
import { citationMarks } from "./cited-text.js";

/** One line for each cited passage: its number on the page, its document and its place. If the answer cites nothing, lists all passages. */
function sources({ citations, evidence }: Message): string[] {
  const cited = new Map(citations?.map((each) => [each.evidence, each]));
  return (evidence ?? []).flatMap((passage, n) => {
    if (cited.size > 0 && !cited.has(n)) return [];
    const { page, section } = { ...passage, ...cited.get(n) };
    const bytes = documents.value.get(passage.document)?.bytes;
    const place = page ? `page ${page}` : bytes && !section ? `at ${percent(passage.start_byte / bytes)}` : null;
    return [`[${n + 1}] ${[nameOf(passage.document), section, place].filter(Boolean).join(", ")}`];
  });
}

export function answerAsText(message: Message): string {
  const notes = sources(message);
  const text = annotated(message.content, citationMarks(message).map(({ at, citation }) => ({ at, text: `[${citation.evidence + 1}]` })));
  return notes.length ? `${text.trimEnd()}\n\nSources:\n${notes.join("\n")}` : text;
}

/** Attributes that mean something on this page only. */
const OF_THE_PAGE = ["class", "style", "tabindex", "role", "aria-label"];

/** `shown`: the element with the answer's text. */
export function answerAsHtml(message: Message, shown: Element): string {
  const copy = shown.cloneNode(true) as Element;
  for (const row of copy.querySelectorAll(".code > .row")) row.remove();
  for (const number of copy.querySelectorAll(".citation")) number.replaceWith(` [${number.textContent}]`);
  const notes = sources(message);
  if (notes.length) {
    const list = document.createElement("p");
    list.append("Sources:");
    for (const note of notes) list.append(document.createElement("br"), note);
    copy.append(list);
  }
  for (const element of copy.querySelectorAll("*")) for (const name of OF_THE_PAGE) element.removeAttribute(name);
  return copy.innerHTML;
}
