/** The list of passages under an answer. */
import type { Citation, Evidence } from "everlong-client";
import { Fragment } from "preact";
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
          const cites = (citations ?? []).filter((citation) => citation.evidence === n).sort((a, b) => a.document_start - b.document_start);
          const [cite] = cites;
          const [page, section] = [cite?.page ?? passage.page, cite?.section ?? passage.section];
          const [start, end] = cite ? citedPart(cite, passage) : [passage.start_byte, passage.end_byte];
          const here = panel?.kind === "text" && panel.document === passage.document && panel.start === start;
          return (
            <li key={`${passage.document}${passage.start}`}>
              <a
                href={hrefTo({ panel: { kind: "text", document: passage.document, start, end } })}
                onClick={(event) => rememberOpener(event.currentTarget)}
                aria-current={here ? "true" : undefined}
                aria-label={`Evidence ${n + 1}, ${name}: ${passage.text.slice(0, 120)}`}
              >
                <span class="number">{n + 1}</span>
                <span class="snippet">
                  {section && <b>{section} · </b>}
                  {cite ? <Cited passage={passage} citations={cites} /> : passage.text}
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

/** A passage from its first cited part on. Its cited parts are marked. `citations`: those of the passage, in the order of its text. */
function Cited({ passage, citations }: { passage: Evidence; citations: readonly Citation[] }) {
  const letters = [...passage.text];
  const text = (from: number, to?: number) => letters.slice(from, to).join("");
  const first = (citations[0]?.document_start ?? passage.start) - passage.start;
  let shown = first;
  const marked = citations.map((citation, n) => {
    const [before, from] = [shown, Math.max(shown, citation.document_start - passage.start)];
    shown = Math.max(from, citation.document_end - passage.start);
    return (
      <Fragment key={n}>
        {text(before, from)}
        {shown > from && <mark>{text(from, shown)}</mark>}
      </Fragment>
    );
  });
  return (
    <>
      {first > 0 && "… "}
      {marked}
      {text(shown)}
    </>
  );
}
