/** A panel that shows a session's memory: which tokens it holds, how full and how old it is, and what it attends to. */
import type { Evidence, MemoryLayer, MemoryPart, MemoryPhrase, SessionMemory } from "everlong-client";
import { useEffect, useRef, useState } from "preact/hooks";
import { Loading } from "../components/loading.js";
import { closePanel } from "../lib/focus.js";
import { count, pages, percent, plural, size, threeDigits } from "../lib/format.js";
import { errorText } from "../state/errors.js";
import { nameOf, sessions } from "../state/library.js";
import { hrefTo } from "../state/route.js";
import { client, retryWhileOffline } from "../state/server.js";
import { sessionMessages } from "../state/turns.js";

export function Memory({ session: id }: { session: string }) {
  const [memory, setMemory] = useState<SessionMemory | null>(null);
  const [error, setError] = useState<string | null>(null);
  const heading = useRef<HTMLHeadingElement>(null);
  const session = sessions.value.find((each) => each.id === id);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  // The memory changes with each answer.
  useEffect(() => {
    setError(null);
    retryWhileOffline(() => client.sessions.memory(id)).then(setMemory, (error) => setError(errorText(error)));
  }, [id, session?.messages, session?.status]);
  return (
    <aside class="panel" aria-labelledby="panel-title">
      <header class="bar">
        <h2 id="panel-title" ref={heading} tabIndex={-1}>
          Memory
        </h2>
        <button class="quiet" aria-label="Close the memory" onClick={closePanel}>
          ✕
        </button>
      </header>
      <div class="text" tabIndex={0} role="region" aria-label="The memory">
        {error && <p class="bad">{error}</p>}
        {!memory && !error && <Loading what="the memory" />}
        {memory && <MemoryOverview memory={memory} used={lastEvidence(id)} />}
      </div>
    </aside>
  );
}

/** The passages that the model was shown for the last answer. */
function lastEvidence(session: string): readonly Evidence[] {
  return sessionMessages.value.get(session)?.findLast(({ role }) => role === "assistant")?.evidence ?? [];
}

/** The ranges of tokens that the model sees unchanged: those of some parts of the memory, and the last ones, which it has not read yet. */
function keptOf(memory: SessionMemory, total: number): [number, number][] {
  const unchanged = unchangedParts(memory).map(({ start, end }): [number, number] => [start, end]);
  return memory.open > 0 ? [...unchanged, [total - memory.open, total]] : unchanged;
}

function unchangedParts({ parts }: SessionMemory): MemoryPart[] {
  return groups(parts).flatMap(([part]) => (part && (part.name === "sinks" || part.name === "window") && part.end > part.start ? [part] : []));
}

function keptTokens(memory: SessionMemory, total: number): number {
  return keptOf(memory, total).reduce((sum, [start, end]) => sum + end - start, 0);
}

/** What the memory keeps and what it has lost, in plain words. */
function summary(memory: SessionMemory, total: number): string {
  const unchanged = unchangedParts(memory);
  const kept = keptTokens(memory, total);
  if (unchanged.length === 0 && memory.memory !== "native")
    return `The memory is a compressed form of the whole text so far, ${pages(total)}. It loses details. Answers about details rest on the passages that the search finds.`;
  if (memory.memory === "native") {
    const carried = `The model carries the whole text so far, ${pages(total)}, in its own recurrent state. The older a word is, the less of it is left. Answers about details rest on the passages that the search finds.`;
    return unchanged.length > 0 ? `${carried} Its layers with attention see ${pages(Math.min(kept, total))} word for word.` : carried;
  }
  if (kept >= total) return `The memory holds the whole text so far, ${pages(total)}, word for word.`;
  return `The memory holds ${pages(kept)} of ${pages(total)} word for word, at the beginning and at the end (${percent(kept / total)}). Answers about the rest of the text use the passages that the search finds.`;
}

function MemoryOverview({ memory, used }: { memory: SessionMemory; used: readonly Evidence[] }) {
  const total = Math.max(1, memory.tokens + memory.open);
  return (
    <>
      <section aria-label="Parts of the memory">
        <ContextBar memory={memory} total={total} used={used} />
        <p>{summary(memory, total)}</p>
        <p class="note">The memory takes {size(memory.bytes)}, however long the text is.</p>
        <details class="parts">
          <summary class="note">The parts of the memory, in numbers</summary>
          {memory.open > 0 && (
            <p class="note">
              The last {plural(memory.open, "token")} enter the memory when their segment of {count(memory.segment_length)} is full.
            </p>
          )}
          {groups(memory.parts).map((parts) => (
            <MemoryPartView key={parts[0]!.name} parts={parts} total={total} memory={memory.memory} />
          ))}
        </details>
      </section>
      {memory.layers.length > 0 && <SignalLayers layers={memory.layers} memory={memory} />}
    </>
  );
}

/** The context: the documents in order, then the messages. */
function ContextBar({ memory, total, used }: { memory: SessionMemory; total: number; used: readonly Evidence[] }) {
  const end = memory.documents.at(-1)?.end ?? 0;
  const kept = keptTokens(memory, total);
  const marks = used.flatMap(({ document, start_token }) => {
    const extent = memory.documents.find((each) => each.document === document);
    return extent && start_token != null ? [((extent.start + start_token) / total) * 1000] : [];
  });
  return (
    <div class="lane">
      <h3>The text so far</h3>
      <svg class="context" viewBox="0 0 1000 28" preserveAspectRatio="none" role="img" aria-label={contextLabel(memory, total)}>
        <rect class="rail" width="1000" height="20" />
        {memory.documents.map((extent, n) => (
          <rect key={extent.document} class={n % 2 ? "document odd" : "document"} x={(extent.start / total) * 1000} width={Math.max(2, ((extent.end - extent.start) / total) * 1000 - 1)} height="20" />
        ))}
        {keptOf(memory, total).map(([from, to]) => (
          <rect key={from} class="kept" x={(from / total) * 1000} width={Math.max(4, ((to - from) / total) * 1000)} y="22" height="6" />
        ))}
        {total > end && <rect class="message-tokens" x={Math.min(996, (end / total) * 1000)} width={Math.max(4, ((total - end) / total) * 1000)} height="20" />}
        {marks.map((x) => (
          <rect key={x} class="used" x={Math.min(996, x)} width="4" height="20" />
        ))}
      </svg>
      <p class="axis" aria-hidden="true">
        <span>beginning</span>
        <span>{pages(total)}</span>
        <span>now</span>
      </p>
      <ul class="legend">
        {memory.documents.map((extent, n) => (
          <li key={extent.document}>
            <i class={n % 2 ? "document odd" : "document"} aria-hidden="true" />
            {nameOf(extent.document)} <span class="note">{pages(extent.end - extent.start)}</span>
          </li>
        ))}
        <li>
          <i class="message-tokens" aria-hidden="true" />
          messages <span class="note">{pages(total - end)}</span>
        </li>
        {kept > 0 && (
          <li>
            <i class="kept" aria-hidden="true" />
            kept word for word <span class="note">{pages(kept)}</span>
          </li>
        )}
        {marks.length > 0 && (
          <li>
            <i class="used" aria-hidden="true" />
            shown for the last answer <span class="note">{plural(marks.length, "passage")}</span>
          </li>
        )}
      </ul>
    </div>
  );
}

function contextLabel(memory: SessionMemory, total: number): string {
  return `${plural(memory.documents.length, "document")} and the messages, ${pages(total)} in all`;
}

const MEANING: Record<string, string> = {
  sinks: "The first tokens, unchanged",
  window: "The last tokens, unchanged",
  entries: "Keys and values of chosen tokens, some from every part",
  memory: "Vectors that every segment rewrites",
  associations: "Associations that every segment extends",
  signal: "One signal over the whole context",
  compressed: "Older tokens, several compressed into one",
  convolution: "The last few tokens, for short convolutions",
  recurrence: "All tokens so far, mixed into one state; older ones fade",
};

/** The parts of one kind, over all their layers: their tokens, how full and how old they are. */
function MemoryPartView({ parts, total, memory }: { parts: readonly MemoryPart[]; total: number; memory: string }) {
  const part = parts[0]!;
  const used = mean(parts.map((each) => each.used));
  const change = parts.every((each) => each.change !== null) ? mean(parts.map((each) => each.change as number)) : null;
  const meaning = (memory === "rmt" || memory === "armt" || part.name !== "memory") && MEANING[part.name];
  const bytes = parts.every((each) => each.bytes != null) ? parts.reduce((sum, each) => sum + (each.bytes as number), 0) : null;
  const decays = parts.flatMap(({ half_life }) => half_life ?? []);
  const facts = `${Number.isInteger(used) ? count(used) : threeDigits(used)} of ${count(part.slots)} used`;
  return (
    <div class="lane">
      <h3>
        {part.name}
        {parts.length > 1 && <span class="note"> in each of {parts.length} layers</span>}
      </h3>
      {meaning && <p class="note">{meaning}</p>}
      <svg viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label={`${part.name}: made of tokens ${count(part.start)} to ${count(part.end)}`}>
        <rect class="rail" width="1000" height="14" />
        <rect class="span" x={Math.min(995, (part.start / total) * 1000)} width={Math.max(part.end > part.start ? 5 : 0, ((part.end - part.start) / total) * 1000)} height="14" />
      </svg>
      <div class="full">
        <svg
          class="gauge"
          viewBox="0 0 100 1"
          preserveAspectRatio="none"
          role="meter"
          aria-label={`${part.name}: slots in use`}
          aria-valuemin={0}
          aria-valuemax={part.slots}
          aria-valuenow={used}
          aria-valuetext={facts}
        >
          <rect class="rail" width="100" height="1" />
          <rect class="span" width={(100 * used) / Math.max(1, part.slots)} height="1" />
        </svg>
        <span class="note">{facts}</span>
      </div>
      <p class="note">
        {part.age === 0 ? "Written with the last token" : `Last written ${plural(part.age, "token")} ago`}
        {change !== null && `; the open segment would change it by ${percent(change)}`}
        {bytes !== null && `. It takes ${size(bytes)}${parts.length > 1 ? " in all layers" : ""}`}
        {decays.length > 0 && `. The weight of a token halves after ${threeDigits(Math.min(...decays))}${decays.length > 1 ? ` to ${threeDigits(Math.max(...decays))}` : ""} tokens`}
      </p>
    </div>
  );
}

function groups(parts: readonly MemoryPart[]): MemoryPart[][] {
  const found = new Map<string, MemoryPart[]>();
  for (const part of parts) found.set(part.name, [...(found.get(part.name) ?? []), part]);
  return [...found.values()];
}

function mean(values: readonly number[]): number {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
}

const COLUMNS = 96;

/** The layers of an ∞-former: the attention and the space of each position, relative to an even share. */
function SignalLayers({ layers, memory }: { layers: readonly MemoryLayer[]; memory: SessionMemory }) {
  const best = layers.at(-1)!;
  return (
    <section aria-label="The signal, layer by layer">
      {best.attention && (
        <div class="lane">
          <h3>Attention</h3>
          <p class="note">Which part of the text the latest words attend to. One row per layer, the last layer on top.</p>
          <HeatMap rows={layers.map((layer) => resample(layer, layer.attention ?? []))} kind="attention" />
        </div>
      )}
      <div class="lane">
        <h3>Space</h3>
        <p class="note">How much of the memory each part of the text takes.</p>
        <HeatMap rows={layers.map((layer) => resample(layer, Array(layer.edges.length - 1).fill(1 / (layer.edges.length - 1))))} kind="space" />
      </div>
      <div class="lane">
        <h3>Most space</h3>
        {best.phrases.length === 0 && <p class="note">All tokens have the same space.</p>}
        <ol class="phrases">
          {best.phrases.map((phrase) => (
            <Phrase key={phrase.start} phrase={phrase} memory={memory} />
          ))}
        </ol>
      </div>
    </section>
  );
}

function Phrase({ phrase, memory }: { phrase: MemoryPhrase; memory: SessionMemory }) {
  const { quote } = phrase;
  return (
    <li>
      {quote ? (
        <a href={hrefTo({ session: memory.session, panel: { kind: "text", document: quote.document, start: quote.start_byte, end: quote.end_byte } })}>“{quote.text}”</a>
      ) : (
        <span>
          tokens {count(phrase.start)} to {count(phrase.end)}
        </span>
      )}{" "}
      <span class="note">{percent(phrase.space)}</span>
    </li>
  );
}

/** Resamples the shares of a layer's bins to equal columns of the context, as multiples of an even share. */
function resample(layer: MemoryLayer, shares: readonly number[]): number[] {
  const total = layer.edges.at(-1) ?? 0;
  const cumulative = [0];
  for (const share of shares) cumulative.push(cumulative.at(-1)! + share);
  const sum = cumulative.at(-1) || 1;
  const cumulativeAt = (at: number): number => {
    let bin = 0;
    while (bin < shares.length - 1 && layer.edges[bin + 1]! < at) bin++;
    const [left, right] = [layer.edges[bin]!, layer.edges[bin + 1]!];
    const inside = right > left ? Math.min(1, Math.max(0, (at - left) / (right - left))) : 1;
    return (cumulative[bin]! + inside * (shares[bin] ?? 0)) / sum;
  };
  return Array.from({ length: COLUMNS }, (_, n) => (cumulativeAt(((n + 1) * total) / COLUMNS) - cumulativeAt((n * total) / COLUMNS)) * COLUMNS);
}

function HeatMap({ rows, kind }: { rows: readonly number[][]; kind: string }) {
  const height = 10;
  const peaks = rows.map((row) => row.indexOf(Math.max(...row)) / COLUMNS);
  return (
    <svg
      class={`heat ${kind}`}
      viewBox={`0 0 ${COLUMNS} ${rows.length * height}`}
      preserveAspectRatio="none"
      style={{ height: `${Math.min(180, Math.max(20, rows.length * 14))}px` }}
      role="img"
      aria-label={`${kind} over the context; the peak of each layer is at ${peaks.map(percent).join(", ")}`}
    >
      {rows.map((row, layer) =>
        row.map((value, column) => (
          <rect
            key={`${layer}.${column}`}
            x={column}
            y={(rows.length - 1 - layer) * height}
            width="1.05"
            height={height - 0.6}
            fill-opacity={Math.min(1, Math.max(0.04, (Math.log10(Math.max(value, 0.01)) + 2) / 4)).toFixed(2)}
          />
        )),
      )}
    </svg>
  );
}
