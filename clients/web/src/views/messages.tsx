/** The messages of a conversation, with what can be done with them, and the running answer. */
import type { Message, Session } from "everlong-client";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { CopyButton } from "../components/copy-button.js";
import { Markdown } from "../components/markdown.js";
import { focusQuestion } from "../lib/focus.js";
import { isComposing } from "../lib/shortcuts.js";
import { askInBranch } from "../state/branches.js";
import { showErrors } from "../state/library.js";
import { connection } from "../state/server.js";
import { type Turn, ask, withdraw } from "../state/turns.js";
import { Basis } from "./basis.js";
import { CitedText } from "./cited-text.js";
import { answerAsHtml, answerAsText } from "./copied-answer.js";
import { Passages } from "./passages.js";

const NEAR = 60; // px from the end within which the view follows the answer

const ENDINGS: Record<string, string> = {
  cancelled: "The answer was stopped here.",
  repetition: "The answer began to repeat itself and was stopped here.",
  length: "The answer reached its maximum length here.",
};

/** An answer with less agreement is probably wrong. */
const DOUBTFUL = 0.4;
const DOUBT = "Probably wrong: the model answered this question several times, and the answers differ. Check the passages.";

/** The messages, scrolled so that the answer to the last question begins in view and stays there while it grows. */
export function Messages({ session, messages, turn, children }: { session: Session; messages: readonly Message[]; turn: Turn | undefined; children: preact.ComponentChildren }) {
  const box = useRef<HTMLDivElement>(null);
  const following = useRef(true);
  const asking = turn !== undefined;
  useLayoutEffect(() => {
    if (asking) following.current = true;
  }, [asking]);
  // Follows the newest text until the last question reaches the top, so that the text never moves away from its reader.
  useLayoutEffect(() => {
    if (!following.current) return;
    const element = box.current!;
    const question = [...element.querySelectorAll<HTMLElement>(".question")].at(-1);
    const end = element.scrollHeight - element.clientHeight;
    const top = question ? question.getBoundingClientRect().top - element.getBoundingClientRect().top + element.scrollTop - 12 : end;
    element.scrollTop = Math.min(end, top);
  }, [messages.length, turn?.text, turn?.evidence, turn?.state, connection.value.state]);
  return (
    <div
      class="messages"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="Messages"
      onScroll={({ currentTarget: { scrollTop, clientHeight, scrollHeight } }) => {
        // Not of `box`: the event can come when the view is gone.
        following.current = scrollTop + clientHeight > scrollHeight - NEAR;
      }}
    >
      <div class="column">
        {children}
        {/* An answer that is being extended is shown as the running one. */}
        {(turn?.continues ? messages.slice(0, -2) : messages).map((message, index) =>
          message.role === "user" ? (
            <Question key={message.id} text={message.content} edit={asking ? null : (text) => askInBranch(session, message.id, text)} />
          ) : (
            <article key={message.id} class="answer" aria-label="Answer">
              <CitedText message={message} />
              {message.finish_reason && ENDINGS[message.finish_reason] && <p class="note">{ENDINGS[message.finish_reason]}</p>}
              {message.agreement != null && message.agreement < DOUBTFUL && <p class="note">{DOUBT}</p>}
              <Actions session={session} messages={messages} index={index} last={!asking && index === messages.length - 1} />
              {message.evidence && <Passages evidence={message.evidence} citations={message.citations} />}
              <Basis message={message} />
            </article>
          ),
        )}
        {turn && <RunningTurn session={session.id} turn={turn} />}
      </div>
    </div>
  );
}

function Actions({ session, messages, index, last }: { session: Session; messages: readonly Message[]; index: number; last: boolean }) {
  const message = messages[index]!;
  const question = messages[index - 1];
  return (
    <div class="actions">
      <CopyButton
        text={answerAsText(message)}
        html={(button) => answerAsHtml(message, button.closest(".answer")!.querySelector(".markdown")!)}
        label="Copy the answer"
      />
      {last && question && (
        <button class="quiet small" title="Ask the question again, in a branch" onClick={() => void showErrors(() => askInBranch(session, question.id, question.content))}>
          Regenerate
        </button>
      )}
      {last && message.finish_reason === "length" && (
        <button
          class="quiet small"
          onClick={() => {
            focusQuestion(); // this button goes
            void showErrors(() => ask(session.id, question?.content ?? "-" /* required, but not used */, message));
          }}
        >
          Continue
        </button>
      )}
    </div>
  );
}

const BRANCHES = "The conversation up to here continues in a branch. This one stays as it is.";

/** A question. `edit` sends it again with another text; `note` says what that does. */
function Question({ text, edit, note = BRANCHES }: { text: string; edit: ((text: string) => Promise<void>) | null; note?: string }) {
  const [editing, setEditing] = useState(false);
  const [changed, setChanged] = useState(text);
  const button = useRef<HTMLButtonElement>(null);
  const close = (kept = text) => {
    setChanged(kept);
    setEditing(false);
    requestAnimationFrame(() => button.current?.focus());
  };
  if (editing && edit) return <QuestionForm text={changed} note={note} onClose={close} onSend={edit} />;
  return (
    <article class="question" aria-label="Question">
      <p class="words">{text}</p>
      {edit ? (
        <button ref={button} class="quiet small" aria-label="Edit the question" onClick={() => setEditing(true)}>
          Edit
        </button>
      ) : (
        // Keeps the button's place, so that the answer does not move when it is complete.
        <span class="button quiet small absent" aria-hidden="true">
          {"\u00a0"}
        </span>
      )}
    </article>
  );
}

function QuestionForm({ text, note, onClose, onSend }: { text: string; note: string; onClose: (kept?: string) => void; onSend: (text: string) => Promise<void> }) {
  const [changed, setChanged] = useState(text);
  const form = useRef<HTMLFormElement>(null);
  // The form is taller than the question: where that was at the upper edge, the browser would keep what follows in view instead.
  useLayoutEffect(() => {
    form.current!.querySelector("textarea")!.focus();
    form.current!.scrollIntoView({ block: "nearest" });
  }, []);
  const send = () => changed.trim() && void showErrors(() => onSend(changed.trim()));
  return (
    <form
      ref={form}
      class="question editing"
      aria-label="Edit the question"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        aria-label="Question"
        dir="auto"
        rows={Math.min(8, changed.split("\n").length + 1)}
        value={changed}
        onInput={(event) => setChanged(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (isComposing(event)) return;
          if (event.key === "Escape") onClose(changed); // perhaps pressed by mistake
          else if (event.key === "Enter" && !event.shiftKey) send();
          else return;
          event.preventDefault();
        }}
      />
      <p class="note">{note}</p>
      <div class="buttons">
        <button type="button" onClick={() => onClose()}>
          Cancel
        </button>
        <button class="main" type="submit">
          Ask
        </button>
      </div>
    </form>
  );
}

/** Returns the note to show until the answer has text. */
function waitingFor({ evidence }: Turn): string {
  if (connection.value.state !== "online") return "Waiting for the server. The page sends this question again when the connection is back.";
  return evidence ? "Reading the passages and the question" : "Searching for passages";
}

function RunningTurn({ session, turn }: { session: string; turn: Turn }) {
  const failed = turn.state === "failed";
  const askInstead = async (text: string) => {
    withdraw(session);
    void ask(session, text);
  };
  return (
    <>
      <Question text={turn.question} edit={failed && !turn.continues ? askInstead : null} note="The new question replaces this one." />
      <article class="answer" aria-label="Answer" aria-busy={!failed}>
        {turn.text ? (
          <Markdown source={turn.text} running={!failed} />
        ) : (
          !failed && (
            <p class="note thinking">
              <span class="pulse" aria-hidden="true" /> {waitingFor(turn)}
            </p>
          )
        )}
        {failed && (
          <div class="bad" role="alert">
            <p>{turn.error}</p>
            <div class="actions">
              {!turn.continues && <button onClick={() => void ask(session, withdraw(session))}>Ask again</button>}
              <button class="quiet" onClick={() => withdraw(session)}>
                {turn.continues ? "Keep the answer as it was" : "Discard"}
              </button>
            </div>
          </div>
        )}
        {turn.evidence && <Passages evidence={turn.evidence} />}
      </article>
    </>
  );
}
