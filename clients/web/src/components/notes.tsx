/** What is not in a document's text, or which files of an archive are no documents, folded up. */
import type { DocumentNote } from "everlong-client";

export function Notes({ notes, summary, open = false }: { notes: readonly DocumentNote[]; summary: string; open?: boolean }) {
  if (notes.length === 0) return null;
  return (
    <details class="note" open={open}>
      <summary>{summary}</summary>
      <ul>
        {notes.map((note, index) => (
          <li key={index}>
            {note.page !== null && `Page ${note.page}: `}
            {note.part !== null && `${note.part}: `}
            {note.text}
          </li>
        ))}
      </ul>
    </details>
  );
}
