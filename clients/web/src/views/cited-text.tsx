/** An answer's text with links to the passages that its sentences rest on. */
import type { Citation, Evidence, Message } from "everlong-client";
import { Markdown } from "../components/markdown.js";
import { rememberOpener } from "../lib/focus.js";
import { nameOf } from "../state/library.js";
import { hrefTo } from "../state/route.js";

const utf8 = new TextEncoder();

/** An answer's text. A number after each cited sentence opens the passage that the sentence rests on. */
export function CitedText({ message }: { message: Message }) {
  const marks = citationMarks(message).map(({ at, citation }) => ({ at, show: <PassageLink citation={citation} message={message} /> }));
  return <Markdown source={message.content} marks={marks} />;
}

/** The citations of an answer, and for each the place of its number in the text, in UTF-16 units. */
export function citationMarks({ content, citations }: Message): { at: number; citation: Citation }[] {
  const letters = [...content]; // the API counts code points
  return (citations ?? []).map((citation) => ({ at: letters.slice(0, citation.end).join("").trimEnd().length, citation }));
}

/** The first byte of the cited part, the byte after it, and its text. */
export function citedPart(citation: Citation, passage: Evidence): [number, number, string] {
  const letters = [...passage.text];
  const [from, to] = [citation.document_start - passage.start, citation.document_end - passage.start];
  const quote = letters.slice(from, to).join("");
  const start = passage.start_byte + utf8.encode(letters.slice(0, from).join("")).length;
  return [start, start + utf8.encode(quote).length, quote];
}

function PassageLink({ citation, message }: { citation: Citation; message: Message }) {
  const passage = message.evidence?.[citation.evidence];
  if (!passage) return null;
  const [start, end, quote] = citedPart(citation, passage);
  return (
    <sup class="citation">
      <a
        href={hrefTo({ panel: { kind: "text", document: citation.document, start, end } })}
        onClick={(event) => rememberOpener(event.currentTarget)}
        aria-label={`Source ${citation.evidence + 1}, ${nameOf(citation.document)}: ${quote.slice(0, 120)}`}
        title={[citation.section, quote].filter(Boolean).join(": ")}
      >
        {citation.evidence + 1}
      </a>
    </sup>
  );
}
