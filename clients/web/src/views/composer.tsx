/** The form for the next question. */
import type { Message, Session } from "everlong-client";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isComposing } from "../lib/shortcuts.js";
import { modelOf } from "../state/library.js";
import { route } from "../state/route.js";
import { type Turn, ask, draft, nextDraft, stop, takesQuestions, withdraw } from "../state/turns.js";
import { caution } from "./basis.js";
import { sidebarOpen } from "./sidebar.js";

export function Composer({ session, turn, messages }: { session: Session; turn: Turn | undefined; messages: readonly Message[] }) {
  const box = useRef<HTMLTextAreaElement>(null);
  const answering = turn !== undefined && turn.state !== "failed";
  const open = takesQuestions(session);
  // After a reload during an answer, the text holds its question, then what was typed meanwhile.
  const [text, setText] = useState(() => (turn ? nextDraft(session.id) : [draft(session.id), nextDraft(session.id)].filter(Boolean).join("\n")));
  const restored = useRef(text);
  // A question that was asked before the page was loaded again needs no draft: it is being answered, or has been.
  const asked = turn?.followed ? turn.question : messages.at(-2)?.content;
  useEffect(() => {
    if (!restored.current || restored.current !== asked || text !== asked) return;
    restored.current = "";
    draft(session.id, "");
    setText("");
  }, [asked]);
  const free = turn === undefined;
  useEffect(() => {
    if (!free) return;
    if (text) draft(session.id, text);
    nextDraft(session.id, "");
  }, [free]);
  useEffect(() => {
    if (!document.querySelector("dialog[open]") && !route.value.panel && !sidebarOpen.value) box.current?.focus({ preventScroll: true });
  }, []);
  useLayoutEffect(() => {
    const element = box.current!;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight + 2, 200)}px`;
  }, [text]);
  const type = (value: string) => {
    setText(value);
    (turn ? nextDraft : draft)(session.id, value);
  };
  const send = () => {
    const question = text.trim();
    if (!question || answering || !open) return;
    if (turn) withdraw(session.id);
    nextDraft(session.id, "");
    setText("");
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
          <button key="stop" type="button" onClick={() => stop(session.id)} disabled={turn.state === "stopping"}>
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
  if (!open) return "You can ask when the documents are read";
  return status === "ready" ? "Ask about it" : "Ask about it: answers rest on the search until it is read";
}
