/** A panel with a document's text, loaded in parts: around a passage, or from a position that the user chooses. */
import type { DocumentText, Evidence } from "everlong-client";
import { useEffect, useRef, useState } from "preact/hooks";
import { Loading } from "../components/loading.js";
import { closePanel } from "../lib/focus.js";
import { percent, size } from "../lib/format.js";
import { errorText } from "../state/errors.js";
import { documents, loadDocument, nameOf } from "../state/library.js";
import { route } from "../state/route.js";
import { client, retryWhileOffline } from "../state/server.js";
import { sessionMessages } from "../state/turns.js";
import { citedPart } from "./cited-text.js";
import { PagePictures } from "./page-picture.js";

const PART = 16_384; // bytes
const MAX_PARTS = 24; // parts kept in the page; others are fetched again when they are needed

export function Reader({ document: id, start, end }: { document: string; start: number | null; end: number | null }) {
  const [parts, setParts] = useState<readonly DocumentText[]>([]);
  const [error, setError] = useState<string | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const mark = useRef<HTMLElement>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  const busy = useRef(false);
  /** The number of jumps so far. Text that was requested before the last jump is discarded. */
  const jumps = useRef(0);
  const [position, setPosition] = useState(start ?? 0);

  const fetchText = (from: number, to: number) =>
    retryWhileOffline(() => client.documents.text(id, { startByte: Math.max(0, from), endByte: Math.max(0, to) }));

  async function exclusively(load: (before: number) => Promise<void>): Promise<void> {
    if (busy.current) return;
    busy.current = true;
    try {
      await load(jumps.current);
      setError(null);
    } catch (error) {
      setError(errorText(error));
    } finally {
      busy.current = false;
    }
  }

  /** Shows the text around byte `from`. Resolves to false if the user has jumped elsewhere meanwhile. */
  async function jump(from: number, to: number): Promise<boolean> {
    const thisJump = ++jumps.current;
    setPosition(from);
    try {
      const part = await fetchText(from - PART / 2, Math.max(to, from) + PART / 2);
      if (thisJump === jumps.current) {
        setParts([part]);
        setError(null);
      }
    } catch (error) {
      if (thisJump === jumps.current) setError(errorText(error));
    }
    return thisJump === jumps.current;
  }

  useEffect(() => {
    setError(null);
    void loadDocument(id);
    void jump(start ?? 0, end ?? 0).then((current) => {
      if (!current) return;
      if (start === null) box.current?.scrollTo(0, 0);
      else if (mark.current) {
        const fits = mark.current.getBoundingClientRect().height < (box.current?.clientHeight ?? 0);
        mark.current.scrollIntoView({ block: fits ? "center" : "start" });
      }
    });
    heading.current?.focus({ preventScroll: true });
  }, [id, start, end]);

  const page = documents.value.get(id)?.pages ? (start === null ? 1 : pageOf(id, start, end)) : null;
  const [picture, setPicture] = useState(false);
  const first = parts[0];
  const last = parts.at(-1);
  const total = last?.bytes ?? documents.value.get(id)?.bytes ?? 0;
  const kept = error && parts.length === 0 && start !== null ? passageAt(id, start) : undefined;
  const earlier = () =>
    first &&
    exclusively(async (before) => {
      const [part, thisJump] = [await fetchText(first.start_byte - PART, first.start_byte), jumps.current];
      if (thisJump === before) setParts((now) => [part, ...now].slice(0, MAX_PARTS));
    });
  const later = () =>
    last &&
    exclusively(async (before) => {
      const [part, thisJump] = [await fetchText(last.end_byte, last.end_byte + PART), jumps.current];
      if (thisJump === before) setParts((now) => [...now, part].slice(-MAX_PARTS));
    });

  return (
    <aside class="panel reader" aria-labelledby="panel-title">
      <header class="bar">
        <h2 id="panel-title" ref={heading} tabIndex={-1} title={nameOf(id)}>
          {nameOf(id)}
        </h2>
        {page !== null && (
          <button onClick={() => setPicture(!picture)} title={picture ? "Show the text" : "Show the page as it looks"}>
            {picture ? "Text" : `Page ${page}`}
          </button>
        )}
        <button class="quiet" aria-label="Close the text" onClick={closePanel}>
          ✕
        </button>
      </header>
      {picture && page !== null && (
        <div class="text" tabIndex={0} role="region" aria-label="Page">
          <PagePictures document={id} page={page} start={start} end={end} />
        </div>
      )}
      {total > PART && !picture && (
        <div class="scrub">
          <input
            type="range"
            aria-label="Position in the text"
            aria-valuetext={percent(position / total)}
            min={0}
            max={total}
            step={Math.max(1, Math.round(total / 200))}
            value={position}
            onChange={(event) => void jump(Number(event.currentTarget.value), 0).then((current) => current && box.current?.scrollTo(0, box.current.scrollHeight / 2))}
          />
          <span class="note">{size(total)}</span>
        </div>
      )}
      <div class="text" ref={box} tabIndex={0} role="region" aria-label="Text" hidden={picture && page !== null}>
        {error && <p class="bad">{error}</p>}
        {parts.length === 0 && !error && <Loading what="the text" />}
        {kept && start !== null && <KeptPassage passage={kept} start={start} end={end} />}
        {first && first.start_byte > 0 && (
          <button class="more" onClick={earlier}>
            Show earlier text
          </button>
        )}
        {parts.length > 0 && (
          <p class="words">
            {parts.map((part) => {
              const [before, inside, after] = cut(part, start, end);
              return (
                <span key={part.start_byte}>
                  {before}
                  {inside && <mark ref={mark}>{inside}</mark>}
                  {after}
                </span>
              );
            })}
          </p>
        )}
        {last && last.end_byte < total && (
          <button class="more" onClick={later}>
            Show later text
          </button>
        )}
      </div>
    </aside>
  );
}

/** A passage whose document cannot be shown: the answer has kept its text. */
function KeptPassage({ passage, start, end }: { passage: Evidence; start: number; end: number | null }) {
  const [before, inside, after] = cut(passage, start, end);
  return (
    <>
      <p class="note">The conversation still has the passage that the model read:</p>
      <p class="words">
        {before}
        <mark>{inside}</mark>
        {after}
      </p>
    </>
  );
}

/** The passage of the open conversation that has the byte `start` of a document. */
function passageAt(document: string, start: number): Evidence | undefined {
  const passages = messagesHere().flatMap(({ evidence }) => evidence ?? []);
  return passages.find((each) => each.document === document && each.start_byte <= start && start < each.end_byte);
}

const messagesHere = () => sessionMessages.value.get(route.value.session ?? "") ?? [];

/** The page that a passage begins on, if it is evidence of the open conversation, or a cited part of it, and has one. */
function pageOf(document: string, start: number, end: number | null): number | null {
  for (const { citations, evidence } of messagesHere())
    for (const citation of citations ?? []) {
      const passage = evidence?.[citation.evidence];
      if (citation.document !== document || !citation.page || !passage) continue;
      const [first, last] = citedPart(citation, passage);
      if (first === start && last === end) return citation.page;
    }
  return passageAt(document, start)?.page ?? null;
}

/** Splits a part of the text into the text before, inside and after the bytes `start` to `end` of the document. */
function cut(part: Pick<DocumentText, "text" | "start_byte" | "end_byte">, start: number | null, end: number | null): [string, string, string] {
  if (start === null || end === null || end <= part.start_byte || start >= part.end_byte) return [part.text, "", ""];
  const bytes = new TextEncoder().encode(part.text);
  const text = (from: number, to: number) => new TextDecoder().decode(bytes.subarray(Math.max(0, from), Math.max(0, to)));
  const [from, to] = [Math.max(0, start - part.start_byte), Math.min(bytes.length, end - part.start_byte)];
  return [text(0, from), text(from, to), text(to, bytes.length)];
}
