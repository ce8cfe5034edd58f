/** The form for the next question. */
import type { Session } from "everlong-client";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { focusQuestion, keyboardOnScreen } from "../lib/focus.js";
import { isComposing } from "../lib/shortcuts.js";
import { modelOf } from "../state/library.js";
import { draft } from "../state/questions.js";
import { route } from "../state/route.js";
import { type Turn, ask, stop, takesQuestions, withdraw } from "../state/turns.js";
import { dismissFailed } from "../state/uploads.js";
import { caution } from "./basis.js";
import { sidebarOpen } from "./sidebar.js";

export function Composer({ session, turn }: { session: Session; turn: Turn | undefined }) {
  const box = useRef<HTMLTextAreaElement>(null);
  const answering = turn !== undefined && turn.state !== "failed";
  const open = takesQuestions(session);
  const [text, setText] = useState(() => draft(session.id));
  useEffect(() => {
    if (keyboardOnScreen() && session.messages > 0) return; // there is something to read first
    if (!document.querySelector("dialog[open]") && !route.value.panel && !sidebarOpen.value) box.current?.focus({ preventScroll: true });
  }, []);
  useLayoutEffect(() => {
    const element = box.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight + 2, 200)}px`;
  }, [text]);
  const type = (value: string) => {
    setText(value);
    draft(session.id, value);
  };
  const send = () => {
    const question = text.trim();
    if (!question || answering || !open) return;
    focusQuestion(); // the button goes, and a keyboard on the screen would cover the answer
    if (turn) withdraw(session.id);
    dismissFailed(session.id);
    setText("");
    if (draft(session.id) === text) draft(session.id, ""); // else it is that of another tab
    void ask(session.id, question);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <div class="column">
        <label class="unseen" for="question">
          Question
        </label>
        <textarea
          id="question"
          dir="auto"
          ref={box}
          rows={1}
          value={text}
          placeholder={placeholder(session.status, open)}
          disabled={session.status === "failed"}
          onInput={(event) => type(event.currentTarget.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || isComposing(event)) return;
            event.preventDefault();
            send();
          }}
        />
        {answering ? (
          <button
            key="stop"
            type="button"
            disabled={turn.state === "stopping"}
            onClick={() => {
              focusQuestion(); // this button goes
              stop(session.id);
            }}
          >
            Stop
          </button>
        ) : (
          <button key="ask" class="main" type="submit" disabled={!open || text.trim() === ""}>
            Ask
          </button>
        )}
      </div>
      <p class="column note caution">{caution(modelOf(session))}</p>
    </form>
  );
}

function placeholder(status: Session["status"], open: boolean): string {
  if (status === "failed") return "";
  if (!open) return "You can ask when the server has read the documents";
  return status === "ready" ? "Ask about it" : "Ask about it. Until it is read, answers use the search only";
}
