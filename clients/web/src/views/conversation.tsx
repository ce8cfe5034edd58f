/** A conversation: its messages, the running answer, and the next question. */
import type { Message, Session } from "everlong-client";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { askConfirmation, askTitle } from "../components/dialogs.js";
import { ReadingProgress } from "../components/reading-progress.js";
import { rememberOpener } from "../lib/focus.js";
import { documents, fork, loadDocument, loadSession, loaded, nameOf, removeSession, rename, sessions, showErrors, titleOf } from "../state/library.js";
import { hrefTo, route } from "../state/route.js";
import { type Turn, ask, loadMessages, sessionMessages, turns, withdraw } from "../state/turns.js";
import { Basis } from "./basis.js";
import { CitedText } from "./cited-text.js";
import { Composer } from "./composer.js";
import { Passages } from "./passages.js";
import { MenuButton } from "./sidebar.js";

export function ConversationView({ session: id }: { session: string }) {
  const session = sessions.value.find((each) => each.id === id);
  const messages = sessionMessages.value.get(id);
  const turn = turns.value.get(id);
  const [missing, setMissing] = useState(false);
  const unknown = loaded.value && !session;
  useEffect(() => void (unknown && showErrors(async () => setMissing(!(await loadSession(id))))), [unknown]);
  useEffect(() => void (session && showErrors(() => loadMessages(id))), [session?.id, session?.messages]);
  useEffect(() => void session?.documents.forEach(loadDocument), [session?.id]);
  if (!session) return <MissingSession confirmed={missing} />;
  return (
    <div class="conversation">
      <Header session={session} />
      <Messages session={session} messages={messages ?? []} turn={turn} />
      <Composer session={session} turn={turn} />
    </div>
  );
}

function MissingSession({ confirmed }: { confirmed: boolean }) {
  return (
    <div class="home">
      <header class="bar">
        <MenuButton />
        <h1>{confirmed ? "There is no such conversation" : "…"}</h1>
      </header>
      {confirmed && (
        <p>
          It was deleted, or belongs to another server. <a href={hrefTo({ session: null, panel: null })}>Start a new conversation.</a>
        </p>
      )}
    </div>
  );
}

function Header({ session }: { session: Session }) {
  const memory = route.value.panel?.kind === "memory";
  return (
    <header class="bar">
      <MenuButton />
      <h1 title={titleOf(session)}>
        <button
          class="name"
          aria-description="Rename"
          onClick={() =>
            void showErrors(async () => {
              const title = await askTitle(titleOf(session));
              if (title !== null && title !== titleOf(session)) await rename(session.id, title);
            })
          }
        >
          {titleOf(session)}
        </button>
      </h1>
      <a
        class="button"
        href={hrefTo({ panel: memory ? null : { kind: "memory" } })}
        aria-current={memory ? "true" : undefined}
        onClick={(event) => rememberOpener(event.currentTarget)}
      >
        Memory
      </a>
      <button onClick={() => void showErrors(() => fork(session.id))} title="Continue in a copy with the same memory">
        Fork
      </button>
      <button
        onClick={() =>
          void showErrors(async () => {
            const detail = "This deletes its memory and its messages. Its documents are kept.";
            if (await askConfirmation("Delete this conversation?", detail, "Delete")) await removeSession(session.id);
          })
        }
      >
        Delete
      </button>
    </header>
  );
}

function Messages({ session, messages, turn }: { session: Session; messages: readonly Message[]; turn: Turn | undefined }) {
  const end = useRef<HTMLDivElement>(null);
  const pinned = useRef(true);
  const box = useRef<HTMLDivElement>(null);
  // Scrolls to the newest text, unless the user has scrolled up.
  useLayoutEffect(() => {
    if (pinned.current) end.current?.scrollIntoView({ block: "end" });
  }, [messages.length, turn?.text, turn?.evidence, turn?.state]);
  return (
    <div
      class="messages"
      ref={box}
      tabIndex={0}
      role="region"
      aria-label="Messages"
      onScroll={() => {
        const { scrollTop, clientHeight, scrollHeight } = box.current!;
        pinned.current = scrollTop + clientHeight > scrollHeight - 60;
      }}
    >
      <div class="column">
        <SessionDocuments session={session} />
        {messages.map((message) =>
          message.role === "user" ? (
            <Question key={message.id} text={message.content} />
          ) : (
            <article key={message.id} class="answer" aria-label="Answer">
              <CitedText message={message} />
              {message.finish_reason === "cancelled" && <p class="note">The answer was stopped here.</p>}
              {message.finish_reason === "repetition" && (
                <p class="note">The answer began to repeat itself and was stopped here.</p>
              )}
              {message.finish_reason === "length" && <p class="note">The answer reached its maximum number of tokens.</p>}
              {message.evidence && <Passages evidence={message.evidence} />}
              <Basis message={message} />
            </article>
          ),
        )}
        {turn && <RunningTurn session={session.id} turn={turn} />}
        <div ref={end} class="end" />
      </div>
    </div>
  );
}

/** The session's documents, and the progress of those that are being read. */
function SessionDocuments({ session }: { session: Session }) {
  if (session.documents.length === 0) return null;
  const unread = session.documents.filter((id) => documents.value.get(id) && documents.value.get(id)!.status !== "ready");
  return (
    <section class="about" aria-label="Documents">
      <ul class="chips">
        {session.documents.map((id) => (
          <li key={id}>
            {documents.value.has(id) ? (
              <a
                href={hrefTo({ panel: { kind: "text", document: id, start: null, end: null } })}
                onClick={(event) => rememberOpener(event.currentTarget)}
                aria-label={`Read ${nameOf(id)}`}
              >
                {nameOf(id)}
              </a>
            ) : (
              <span>{nameOf(id)}</span>
            )}
          </li>
        ))}
      </ul>
      {unread.map((id) => (
        <div key={id} class="card">
          {session.documents.length > 1 && <span class="title">{nameOf(id)}</span>}
          <ReadingProgress document={documents.value.get(id)!} />
        </div>
      ))}
      {session.status === "reading" && unread.length === 0 && (
        <div class="card">
          <progress aria-label="Reading" />
          <p class="note">{session.documents.length > 1 ? "The server reads the documents one after the other, into one memory." : "Almost ready."}</p>
        </div>
      )}
      {session.status === "failed" && <p class="bad">The documents of this conversation could not be read, so you cannot ask questions.</p>}
    </section>
  );
}

function Question({ text }: { text: string }) {
  return (
    <article class="question" aria-label="Question">
      <p class="words">{text}</p>
    </article>
  );
}

function RunningTurn({ session, turn }: { session: string; turn: Turn }) {
  const failed = turn.state === "failed";
  return (
    <>
      <Question text={turn.question} />
      <article class="answer" aria-label="Answer" aria-busy={!failed}>
        {turn.text ? (
          <p class="words">
            {turn.text}
            {!failed && <span class="caret" aria-hidden="true" />}
          </p>
        ) : (
          !failed && (
            <p class="note thinking">
              <span class="pulse" aria-hidden="true" /> {turn.evidence ? "Reading the passages and the question" : "Searching for passages"}
            </p>
          )
        )}
        {failed && (
          <div class="bad" role="alert">
            <p>{turn.error}</p>
            <button onClick={() => void ask(session, withdraw(session))}>Ask again</button>
          </div>
        )}
        {turn.evidence && <Passages evidence={turn.evidence} />}
      </article>
    </>
  );
}
