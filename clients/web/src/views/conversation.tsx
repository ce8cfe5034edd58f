/** A conversation: its messages, the running answer, and the next question. */
import type { Session } from "everlong-client";
import { useEffect, useState } from "preact/hooks";
import { askConfirmation, askTitle } from "../components/dialogs.js";
import { Loading } from "../components/loading.js";
import { Menu } from "../components/menu.js";
import { ReadingProgress } from "../components/reading-progress.js";
import { Uploads } from "../components/uploads.js";
import { rememberOpener } from "../lib/focus.js";
import { plural } from "../lib/format.js";
import { addFiles, branchesOf, loadBranches } from "../state/branches.js";
import { exportJson, exportMarkdown } from "../state/conversations.js";
import { documents, fork, isDeleted, loadDocument, loadSession, loaded, nameOf, removeSession, rename, sessions, showErrors, titleOf } from "../state/library.js";
import { hrefTo, route } from "../state/route.js";
import { follow, loadMessages, restoreAsked, sessionMessages, turns } from "../state/turns.js";
import { Composer } from "./composer.js";
import { chooseDocuments } from "./home.js";
import { Messages } from "./messages.js";
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
  useEffect(() => void (session?.answering && showErrors(() => follow(id))), [session?.id, session?.answering]);
  useEffect(() => void (session && !session.answering && showErrors(() => restoreAsked(id))), [session?.id, session?.answering]);
  if (!session) return <MissingSession confirmed={missing} />;
  return (
    <div class="conversation">
      <Header session={session} />
      <Branches session={session} />
      <Messages session={session} messages={messages ?? []} turn={turn}>
        <SessionDocuments session={session} />
        {!messages && session.messages > 0 && <Loading what="the messages" />}
      </Messages>
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
      {!confirmed && <Loading what="the conversation" />}
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
  const changeTitle = () =>
    void showErrors(async () => {
      const title = await askTitle(titleOf(session));
      if (title !== null && title !== titleOf(session)) await rename(session.id, title);
    });
  return (
    <header class="bar">
      <MenuButton />
      <h1 title={titleOf(session)}>
        <button class="name" aria-description="Rename" onClick={changeTitle}>
          <span>{titleOf(session)}</span>
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
      <Menu label="More" sign="⋯">
        <button onClick={changeTitle}>Rename</button>
        <button onClick={() => void showErrors(() => fork(session.id))}>Continue in a copy</button>
        <button onClick={() => void showErrors(() => exportMarkdown(session))}>Export as Markdown</button>
        <button onClick={() => void showErrors(() => exportJson([session]))}>Export as JSON</button>
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
      </Menu>
    </header>
  );
}

/** How many of a conversation's documents are named at first: an archive can have a thousand. */
const NAMED = 12;

/** The session's documents, and the progress of those that are being read. */
function SessionDocuments({ session }: { session: Session }) {
  const [all, setAll] = useState(false);
  const unread = session.documents.filter((id) => documents.value.get(id) && documents.value.get(id)!.status !== "ready");
  const deleted = session.documents.filter(isDeleted).length;
  return (
    <section class="about" aria-label="Documents">
      <ul class="chips">
        {session.documents.slice(0, all ? undefined : NAMED).map((id) => (
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
      {session.documents.length > NAMED && (
        <button class="quiet small" aria-expanded={all} onClick={() => setAll(!all)}>
          {all ? "Fewer documents" : plural(session.documents.length - NAMED, "more document")}
        </button>
      )}
      {deleted > 0 && <p class="note">{deleted === 1 ? "A document was" : `${deleted} documents were`} deleted, so the search finds nothing in {deleted === 1 ? "it" : "them"}.</p>}
      <button class="quiet small" title="Continue in a branch with more documents" onClick={() => chooseDocuments((files) => addFiles(session, files))}>
        + Add a document
      </button>
      <Uploads />
      {unread.slice(0, NAMED).map((id) => (
        <div key={id} class="card">
          {session.documents.length > 1 && <span class="title">{nameOf(id)}</span>}
          <ReadingProgress document={documents.value.get(id)!} />
        </div>
      ))}
      {unread.length > NAMED && <p class="note">{plural(unread.length - NAMED, "more document")} to read</p>}
      {session.status === "reading" && unread.length === 0 && (
        <div class="card">
          <progress aria-label="Reading" />
          <p class="note">{session.documents.length > 1 ? "The server reads the documents one after the other, into one memory." : "Almost ready."}</p>
        </div>
      )}
      {session.status === "failed" && <p class="bad">The documents of this conversation could not be read, so you cannot ask questions. Start a new conversation about other documents.</p>}
    </section>
  );
}

/** Switches between the branches of a conversation. */
function Branches({ session }: { session: Session }) {
  useEffect(() => void showErrors(() => loadBranches(session)), [session.id]);
  const branches = branchesOf(session);
  if (branches.length < 2) return null;
  const here = branches.findIndex(({ id }) => id === session.id);
  const link = (step: number, label: string, sign: string) => {
    const to = branches[here + step];
    return to ? (
      <a class="button quiet small" href={hrefTo({ session: to.id, panel: null })} aria-label={label}>
        {sign}
      </a>
    ) : (
      <span class="button quiet small" aria-hidden="true">
        {sign}
      </span>
    );
  };
  return (
    <nav class="branches column note" aria-label="Branches">
      {link(-1, "Previous branch", "‹")}
      Branch {here + 1} of {branches.length}
      {link(1, "Next branch", "›")}
    </nav>
  );
}
