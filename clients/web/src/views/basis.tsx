/** What an answer rests on: passages, memory and model, in plain words. */
import type { Message, Model } from "everlong-client";
import { pages, percent, plural, size, wordsOf } from "../lib/format.js";
import { models } from "../state/library.js";

/** Models with fewer parameters are called small. */
const SMALL = 10e9;

/** One line about an answer's passages, and on demand what the memory and the model contributed. */
export function Basis({ message }: { message: Message }) {
  const { usage, evidence, memory_progress: progress } = message;
  const served = models.value.find(({ id }) => id === message.model) ?? null;
  const passages = evidence?.length ?? 0;
  return (
    <details class="note usage">
      <summary>{summary(passages, progress)}</summary>
      <dl>
        {message.standalone_question && (
          <>
            <dt>Question</dt>
            <dd>The model understood the question as “{message.standalone_question}”. The search used these words.</dd>
          </>
        )}
        <dt>Passages</dt>
        <dd>
          {passages
            ? `The search chose ${plural(passages, "passage")} for the question. The model read them word for word; the list above shows them.`
            : evidence
              ? "The search found no passage for the question."
              : "The documents were not searched."}
        </dd>
        {usage && (
          <>
            <dt>Memory</dt>
            <dd>{progress == null ? memoryShare(usage.reused_tokens, served) : unread(progress)}</dd>
          </>
        )}
        <dt>Model</dt>
        <dd>
          {message.model ?? "The model"}
          {served?.parameters && `, ${parameterCount(served.parameters)} parameters`}. {caution(served)}
        </dd>
        {usage && (
          <>
            <dt>Work</dt>
            <dd>
              The model read about {plural(wordsOf(usage.prompt_tokens - usage.reused_tokens), "word")} for this answer and wrote {plural(wordsOf(usage.completion_tokens), "word")}.
            </dd>
          </>
        )}
      </dl>
    </details>
  );
}

/** `progress`: the share of the documents that the memory had read; null or undefined for all. */
function summary(passages: number, progress: number | null | undefined): string {
  const sources = passages ? plural(passages, "passage") : progress == null ? "the memory and the model" : "the model";
  if (progress == null) return `Rests on ${sources}${passages ? "" : " alone"}`;
  return `Rests on ${sources} alone: the memory had read ${percent(progress)} of the text`;
}

function unread(progress: number): string {
  return `The memory was not used, because it had read only ${percent(progress)} of the documents. It reads this question and its answer after the documents.`;
}

/** How much of `tokens` tokens of context the memory of a model holds. */
function memoryShare(tokens: number, served: Model | null): string {
  if (tokens === 0) return "The memory was empty, so the model read the whole conversation again.";
  const kept = served?.remembered_tokens ?? null;
  if (kept !== null && kept < tokens) return `It holds ${pages(kept)} of ${pages(tokens)} before the question (${percent(kept / tokens)}), and nothing of the rest.`;
  if (kept !== null) return `It holds all of the text before the question, ${pages(tokens)}.`;
  if (served?.state_bytes) return `It holds the text before the question, ${pages(tokens)}, in ${size(served.state_bytes)}, without most details.`;
  return `The model had read ${pages(tokens)} before the question.`;
}

/** A warning that suits the size of the model. */
export function caution(served: Model | null): string {
  if (served?.memory_trained === false) return "Its memory is not trained, so its answers are nonsense.";
  const small = served?.parameters != null && served.parameters < SMALL;
  return `${small ? "Small models are often wrong" : "Models can be wrong"}: check the passages.`;
}

/** What an answer can rest on, before a file is uploaded. */
export function promise(served: Model | null): string {
  const memory =
    served?.memory === "window"
      ? "The model sees no other part of the text."
      : "The model also has a memory of the text, which loses most details.";
  return `For each question, the server searches the text, and the answer rests on the passages that it finds. ${memory}`;
}

function parameterCount(parameters: number): string {
  return parameters >= 1e9 ? `${(parameters / 1e9).toFixed(1)} billion` : `${Math.round(parameters / 1e6)} million`;
}
