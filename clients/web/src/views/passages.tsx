/** The list of passages under an answer. */
import type { Evidence } from "everlong-client";
import { useState } from "preact/hooks";
import { rememberOpener } from "../lib/focus.js";
import { percent, plural } from "../lib/format.js";
import { documents, nameOf } from "../state/library.js";
import { hrefTo, route } from "../state/route.js";

const SHOWN = 3;

/** The passages that the model was given for an answer. */
export function Passages({ evidence }: { evidence: readonly Evidence[] }) {
  const [all, setAll] = useState(false);
  if (evidence.length === 0) return <p class="note">No passage was found for this question.</p>;
  const { panel } = route.value;
  const several = new Set(evidence.map((passage) => passage.document)).size > 1;
  return (
    <section class="evidence" aria-label="Evidence">
      <ol>
        {(all ? evidence : evidence.slice(0, SHOWN)).map((passage, n) => {
          const name = nameOf(passage.document);
          const bytes = documents.value.get(passage.document)?.bytes;
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
                  {passage.section && <b>{passage.section} · </b>}
                  {passage.text}
                </span>
                <span class="note">
                  {several && <span class="title">{name}</span>}
                  {passage.page ? `page ${passage.page}` : bytes ? `at ${percent(passage.start_byte / bytes)}` : ""}
                </span>
              </a>
            </li>
          );
        })}
      </ol>
      {evidence.length > SHOWN && (
        <button class="quiet" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Fewer passages" : `${plural(evidence.length - SHOWN, "more passage")}`}
        </button>
      )}
    </section>
  );
}
