import type { Citation, Message } from "everlong-client";
import { Fragment } from "preact";
import { rememberOpener } from "../lib/focus.js";
import { nameOf } from "../state/library.js";
import { hrefTo } from "../state/route.js";

const utf8 = new TextEncoder();

/** An answer's text. A number after each cited sentence opens the passage that the sentence rests on. */
export function CitedText({ message }: { message: Message }) {
  // The API counts code points; a string's own offsets count UTF-16 units.
  const letters = [...message.content];
  const citations = message.citations ?? [];
  const ends = [...new Set(citations.map((citation) => citation.end))].sort((a, b) => a - b);
  return (
    <p class="words">
      {ends.map((end, n) => (
        <Fragment key={end}>
          {letters.slice(ends[n - 1] ?? 0, end).join("")}
          {citations
            .filter((citation) => citation.end === end)
            .map((citation) => (
              <PassageLink key={citation.evidence} citation={citation} message={message} />
            ))}
        </Fragment>
      ))}
      {letters.slice(ends.at(-1) ?? 0).join("")}
    </p>
  );
}

function PassageLink({ citation, message }: { citation: Citation; message: Message }) {
  const passage = message.evidence?.[citation.evidence];
  if (!passage) return null;
  const letters = [...passage.text];
  const bytesUntil = (end: number) => passage.start_byte + utf8.encode(letters.slice(0, end - passage.start).join("")).length;
  const [start, end] = [bytesUntil(citation.document_start), bytesUntil(citation.document_end)];
  const quote = letters.slice(citation.document_start - passage.start, citation.document_end - passage.start).join("");
  return (
    <sup class="citation">
      <a
        href={hrefTo({ panel: { kind: "text", document: citation.document, start, end } })}
        onClick={(event) => rememberOpener(event.currentTarget)}
        aria-label={`Source ${citation.evidence + 1}, ${nameOf(citation.document)}: ${quote.slice(0, 120)}`}
        title={quote}
      >
        {citation.evidence + 1}
      </a>
    </sup>
  );
}
