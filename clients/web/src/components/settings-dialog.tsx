/** The dialog with the settings, each with a sentence on what it means. */
import { signal } from "@preact/signals";
import { model } from "../state/library.js";
import { type Theme, answerSettings, setAnswers, setTheme, theme } from "../state/settings.js";
import { Dialog } from "./dialogs.js";

export const settingsOpen = signal(false);

export function SettingsDialog() {
  if (!settingsOpen.value) return null;
  const { maxTokens, temperature, passages } = answerSettings.value;
  const close = () => (settingsOpen.value = false);
  return (
    <Dialog title="Settings" onClose={close}>
      <div class="settings">
        <label for="theme">Colours</label>
        <select id="theme" value={theme.value} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
          <option value="light dark">as the system</option>
          <option value="light">light</option>
          <option value="dark">dark</option>
        </select>
        <NumberField id="max-tokens" label="Longest answer" value={maxTokens} min={1} max={100_000} step={1} set={(maxTokens) => setAnswers({ maxTokens })}>
          In tokens, of which a word has one or two. A longer answer is cut, and can be continued.
        </NumberField>
        <NumberField id="temperature" label="Temperature" value={temperature} min={0} max={2} step={0.1} set={(temperature) => setAnswers({ temperature })}>
          0 always takes the likeliest word; with higher values, answers vary and err more.
        </NumberField>
        <NumberField id="passages" label="Passages" value={passages} min={0} max={32} step={1} set={(passages) => setAnswers({ passages })}>
          How many passages of the documents the model gets with a question, at most. With 0 it answers from its memory alone.
        </NumberField>
      </div>
      <p class="note">
        Empty fields are left to the server. {model.value && `It serves one model, ${model.value.id}, and answers in the language of the question as far as the model knows it.`}
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

/** A number, which is stored once it is valid. */
function NumberField({ id, label, value, min, max, step, set, children }: NumberFieldProps) {
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
        onInput={({ currentTarget: field }) => field.validity.valid && set(field.value === "" ? null : field.valueAsNumber)}
      />
      <p id={`${id}-help`} class="note">
        {children}
      </p>
    </>
  );
}
