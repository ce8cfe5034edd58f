/** The list of passages under an answer. */
import type { Citation, Evidence } from "everlong-client";
import { useState } from "preact/hooks";
import { rememberOpener } from "../lib/focus.js";
import { percent, plural } from "../lib/format.js";
import { documents, nameOf } from "../state/library.js";
import { hrefTo, route } from "../state/route.js";
import { citedPart } from "./cited-text.js";

const SHOWN = 3;

/** The passages that the model was given for an answer. Those that it cites are never folded up. */
export function Passages({ evidence, citations = [] }: { evidence: readonly Evidence[]; citations?: readonly Citation[] | null | undefined }) {
  const [all, setAll] = useState(false);
  if (evidence.length === 0) return <p class="note">No passage was found for this question.</p>;
  const { panel } = route.value;
  const several = new Set(evidence.map((passage) => passage.document)).size > 1;
  const cited = new Set(citations?.map((citation) => citation.evidence));
  const shown = evidence.map((passage, n) => [passage, n] as const).filter(([, n]) => all || n < SHOWN || cited.has(n));
  const folded = evidence.filter((_, n) => n >= SHOWN && !cited.has(n)).length;
  return (
    <section class="evidence" aria-label="Evidence">
      <ol>
        {shown.map(([passage, n]) => {
          const name = nameOf(passage.document);
          const bytes = documents.value.get(passage.document)?.bytes;
          const cite = citations?.find((citation) => citation.evidence === n);
          const [page, section] = [cite?.page ?? passage.page, cite?.section ?? passage.section];
          const start = cite ? citedPart(cite, passage)[0] : passage.start_byte;
          const here = panel?.kind === "text" && panel.document === passage.document && panel.start === passage.start_byte;
          return (
            <li key={`${passage.document}${passage.start}`}>
              <a
                href={hrefTo({ panel: { kind: "text", document: passage.document, start: passage.start_byte, end: passage.end_byte } })}
                onClick={(event) => rememberOpener(event.currentTarget)}
                aria-current={here ? "true" : undefined}
                aria-label={`Evidence ${n + 1}, ${name}: ${passage.text.slice(0, 120)}`}
              >
                <span class="number">{n + 1}</span>
                <span class="snippet">
                  {section && <b>{section} · </b>}
                  {cite ? <Cited passage={passage} citation={cite} /> : passage.text}
                </span>
                <span class="note">
                  {several && <span class="title">{name}</span>}
                  {page ? `page ${page}` : bytes ? `at ${percent(start / bytes)}` : ""}
                </span>
              </a>
            </li>
          );
        })}
      </ol>
      {folded > 0 && (
        <button class="quiet" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Fewer passages" : `${plural(folded, "more passage")}`}
        </button>
      )}
    </section>
  );
}

/** A passage from its cited part on, which is marked. */
function Cited({ passage, citation }: { passage: Evidence; citation: Citation }) {
  const letters = [...passage.text];
  const [from, to] = [citation.document_start - passage.start, citation.document_end - passage.start];
  return (
    <>
      {from > 0 && "… "}
      <mark>{letters.slice(from, to).join("")}</mark>
      {letters.slice(to).join("")}
    </>
  );
}
