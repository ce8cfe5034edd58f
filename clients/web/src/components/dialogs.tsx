/** Modal dialogs: to confirm, to rename, for the API key, and the list of keys. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { connection, hasKey, setKey } from "../state/server.js";
import { setSingleKeys, singleKeys } from "../state/settings.js";

export const helpOpen = signal(false);
export const confirmation = signal<{ question: string; detail: string; action: string; answer: (yes: boolean) => void } | null>(null);

/** Asks the user to confirm an action. Resolves to true if they do. */
export function askConfirmation(question: string, detail: string, action: string): Promise<boolean> {
  return new Promise((resolve) => {
    const answer = (yes: boolean) => {
      confirmation.value = null;
      resolve(yes);
    };
    confirmation.value = { question, detail, action, answer };
  });
}

export const renaming = signal<{ title: string; answer: (title: string | null) => void } | null>(null);

/** Asks the user for a new title of a conversation, `title` being the current one. Resolves to null if they cancel. */
export function askTitle(title: string): Promise<string | null> {
  return new Promise((resolve) => {
    const answer = (given: string | null) => {
      renaming.value = null;
      resolve(given);
    };
    renaming.value = { title, answer };
  });
}

/** A modal dialog. The browser keeps the focus inside. Afterwards, the element that had it before gets it back. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; locked?: boolean }) {
  const element = useRef<HTMLDialogElement>(null);
  // The browser would remember a field with `autofocus` instead, which has the focus as soon as it is part of the page.
  const opener = useRef(document.activeElement);
  useEffect(() => {
    const dialog = element.current!;
    dialog.showModal();
    return () => {
      dialog.close();
      if (opener.current instanceof HTMLElement && opener.current.isConnected) opener.current.focus({ preventScroll: true });
    };
  }, []);
  return (
    <dialog
      ref={element}
      aria-labelledby="dialog-title"
      onCancel={(event) => {
        event.preventDefault();
        if (!props.locked) props.onClose();
      }}
    >
      <h2 id="dialog-title">{props.title}</h2>
      {props.children}
    </dialog>
  );
}

export function ConfirmDialog() {
  const asked = confirmation.value;
  if (!asked) return null;
  return (
    <Dialog title={asked.question} onClose={() => asked.answer(false)}>
      <p>{asked.detail}</p>
      <div class="buttons">
        <button onClick={() => asked.answer(false)}>Cancel</button>
        <button class="danger" onClick={() => asked.answer(true)}>
          {asked.action}
        </button>
      </div>
    </Dialog>
  );
}

export function NameDialog() {
  const asked = renaming.value;
  if (!asked) return null;
  return (
    <Dialog title="Rename the conversation" onClose={() => asked.answer(null)}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          asked.answer(String(new FormData(event.currentTarget).get("title") ?? "").trim() || null);
        }}
      >
        <label for="title">Title</label>
        <input id="title" name="title" dir="auto" defaultValue={asked.title} maxLength={200} required autofocus autocomplete="off" onFocus={(event) => event.currentTarget.select()} />
        <div class="buttons">
          <button type="button" onClick={() => asked.answer(null)}>
            Cancel
          </button>
          <button class="main" type="submit">
            Rename
          </button>
        </div>
      </form>
    </Dialog>
  );
}

export function KeyDialog() {
  const now = connection.value;
  if (now.state !== "locked") return null;
  return (
    <Dialog title="API key" onClose={() => {}} locked>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(String(new FormData(event.currentTarget).get("key") ?? ""));
        }}
      >
        <p id="key-why">{now.refused ? "The server does not accept the stored key." : "This server requires an API key."} The key is stored in this browser only.</p>
        <label for="key">Key</label>
        <input id="key" name="key" type="password" autocomplete="current-password" required autofocus aria-describedby="key-why" />
        <div class="buttons">
          <button class="main" type="submit">
            Use this key
          </button>
        </div>
      </form>
    </Dialog>
  );
}

const KEYS: [string, string][] = [
  ["/", "Write a question"],
  ["Enter", "Send it (Shift + Enter: a new line)"],
  ["n", "New conversation"],
  ["u", "Choose files"],
  ["j, k", "Next, previous conversation"],
  ["m", "Show or hide the memory"],
  ["Esc", "Close the panel, or leave the question"],
  ["?", "Show this list"],
];

export function HelpDialog() {
  if (!helpOpen.value) return null;
  const close = () => (helpOpen.value = false);
  return (
    <Dialog title="Keys" onClose={close}>
      <dl class="keys">
        {KEYS.map(([key, what]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
      <label class="check">
        <input type="checkbox" checked={singleKeys()} onChange={(event) => setSingleKeys(event.currentTarget.checked)} />
        Use single letters as shortcuts
      </label>
      <div class="buttons">
        {hasKey() && (
          <button
            onClick={() => {
              setKey("");
              close();
            }}
          >
            Forget the API key
          </button>
        )}
        <button class="main" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  );
}
