/** The dialog with the settings, each with a sentence on what it means. */
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { count, tokensOf, wordsOf } from "../lib/format.js";
import { chosenModel, model, models } from "../state/library.js";
import { type Theme, answerSettings, setAnswers, setTheme, theme } from "../state/settings.js";
import { Dialog } from "./dialogs.js";

export const settingsOpen = signal(false);

/** The choices of words that the model gets with a question. */
const AMOUNTS = [0, 75, 150, 400, 750, 1500];

export function SettingsDialog() {
  if (!settingsOpen.value) return null;
  const { maxTokens, temperature, words, language } = answerSettings.value;
  const served = model.value;
  const close = () => (settingsOpen.value = false);
  return (
    <Dialog title="Settings" onClose={close}>
      <div class="settings">
        <label for="theme">Colours</label>
        <select id="theme" aria-describedby="theme-help" value={theme.value} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
          <option value="light dark">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
        <p id="theme-help" class="note">
          For this page in this browser.
        </p>
        <NumberField
          id="max-words"
          label="Longest answer"
          value={maxTokens === null ? null : wordsOf(maxTokens)}
          min={1}
          max={75_000}
          step={1}
          set={(words) => setAnswers({ maxTokens: words === null ? null : tokensOf(words) })}
        >
          In words. A longer answer is cut, and can be continued.
        </NumberField>
        <NumberField id="temperature" label="Temperature" value={temperature} min={0} max={2} step={0.1} set={(temperature) => setAnswers({ temperature })}>
          0 always takes the likeliest word. With higher values, answers vary more and are more often wrong.
        </NumberField>
        <label for="words">Text to read</label>
        <select id="words" aria-describedby="words-help" value={String(words ?? "")} disabled={served?.recall_passages === 0} onChange={({ currentTarget: { value } }) => setAnswers({ words: value ? Number(value) : null })}>
          <option value="">{served?.recall_tokens ? `default: up to ${count(wordsOf(served.recall_tokens))} words` : "default"}</option>
          {AMOUNTS.filter((amount) => tokensOf(amount) <= (served?.max_recall_tokens ?? Infinity)).map((amount) => (
            <option key={amount} value={amount}>
              {amount ? `up to ${count(amount)} words` : "none"}
            </option>
          ))}
        </select>
        <p id="words-help" class="note">
          {served?.recall_passages === 0
            ? "This server does not search: the model answers from its memory alone."
            : "How much text of the documents the model reads with each question. More text takes longer and can mislead small models. With none, the model answers from its memory alone."}
        </p>
        <label for="language">Answers in</label>
        <input
          id="language"
          aria-describedby="language-help"
          placeholder="as the question"
          maxLength={40}
          defaultValue={language ?? ""}
          onInput={({ currentTarget: { value } }) => setAnswers({ language: value.trim() || null })}
        />
        <p id="language-help" class="note">
          For example German. Small models know few languages, and do not always use the one that you choose.
        </p>
        {models.value.length > 1 && (
          <>
            <label for="model">Model</label>
            <select id="model" aria-describedby="model-help" value={chosenModel()?.id} onChange={(event) => setAnswers({ model: event.currentTarget.value })}>
              {models.value.map(({ id }) => (
                <option key={id}>{id}</option>
              ))}
            </select>
            <p id="model-help" class="note">
              For new conversations. A conversation keeps its model.
            </p>
          </>
        )}
      </div>
      <p class="note">
        These settings apply to your next questions. For an empty field, the server chooses the value. {served && models.value.length === 1 && `The server has one model, ${served.id}.`}
      </p>
      <div class="buttons">
        <button class="main" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}

interface NumberFieldProps {
  id: string;
  label: string;
  value: number | null;
  min: number;
  max: number;
  step: number;
  set: (value: number | null) => void;
  children: string;
}

/** A number, which is stored once it is valid. Until then, the field says so. Values between the steps are valid. */
function NumberField({ id, label, value, min, max, step, set, children }: NumberFieldProps) {
  const [invalid, setInvalid] = useState(false);
  const change = ({ validity, value, valueAsNumber }: HTMLInputElement) => {
    const refused = validity.badInput || validity.rangeUnderflow || validity.rangeOverflow;
    setInvalid(refused);
    if (!refused) set(value === "" ? null : valueAsNumber);
  };
  return (
    <>
      <label for={id}>{label}</label>
      <input
        id={id}
        type="number"
        inputMode="decimal"
        aria-describedby={`${id}-help`}
        placeholder="default"
        {...{ min, max, step }}
        defaultValue={value === null ? "" : String(value)}
        aria-invalid={invalid}
        onInput={({ currentTarget }) => change(currentTarget)}
      />
      <div id={`${id}-help`}>
        <p class="note">{children}</p>
        <p class="bad" role="alert" hidden={!invalid}>
          Enter a number between {count(min)} and {count(max)}. Until then, the earlier value applies.
        </p>
      </div>
    </>
  );
}
