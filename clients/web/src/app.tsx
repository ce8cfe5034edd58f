import { useEffect } from "preact/hooks";
import { ConfirmDialog, HelpDialog, KeyDialog, NameDialog } from "./components/dialogs.js";
import { SettingsDialog } from "./components/settings-dialog.js";
import { ArchiveDialog, PasteDialog } from "./components/upload-dialogs.js";
import { onKeyDown } from "./lib/shortcuts.js";
import { dragging } from "./lib/transfer.js";
import { lastError, sessions, titleOf } from "./state/library.js";
import { route } from "./state/route.js";
import { checkServer, connection, restored, slowChanges } from "./state/server.js";
import { announcement } from "./state/turns.js";
import { ConversationView } from "./views/conversation.js";
import { Home } from "./views/home.js";
import { Memory } from "./views/memory.js";
import { Reader } from "./views/reader.js";
import { Sidebar } from "./views/sidebar.js";

export function App() {
  const { session, panel } = route.value;
  useEffect(() => {
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  const title = sessions.value.find(({ id }) => id === session);
  useEffect(() => {
    document.title = title ? `${titleOf(title)} · everlong` : "everlong";
  });
  return (
    <>
      <button class="skip" onClick={() => document.querySelector<HTMLElement>("main")?.focus()}>
        Skip to the conversation
      </button>
      <Banner />
      <div class={panel ? "page with-panel" : "page"}>
        <Sidebar />
        <main tabIndex={-1}>{session ? <ConversationView key={session} session={session} /> : <Home />}</main>
        {panel?.kind === "memory" && session && <Memory key={session} session={session} />}
        {panel?.kind === "text" && <Reader key={panel.document} {...panel} />}
      </div>
      <div class="unseen" role="status">
        {announcement.value}
      </div>
      {session && dragging.value && <div class="drop-hint">Drop the documents to add them to this conversation</div>}
      <div role="status">
        {slowChanges.value > 0 && !lastError.value && (
          <div class="notice">
            <span class="pulse" aria-hidden="true" /> Waiting for the server
          </div>
        )}
      </div>
      <ErrorNotice />
      <KeyDialog />
      <HelpDialog />
      <SettingsDialog />
      <ConfirmDialog />
      <NameDialog />
      <ArchiveDialog />
      <PasteDialog />
    </>
  );
}

/** A banner about the connection to the server. */
function Banner() {
  const now = connection.value;
  return (
    <div role="status" class="banner-place">
      {now.state === "offline" && (
        <div class="banner">
          <span class="pulse" aria-hidden="true" />
          <span>
            <strong>{now.why}</strong> This page tries again automatically. Nothing is lost.
          </span>
          <button onClick={() => void checkServer()}>Try now</button>
        </div>
      )}
      {now.state === "online" && restored.value && <div class="banner good">The server is back.</div>}
    </div>
  );
}

function ErrorNotice() {
  return (
    <div role="alert">
      {lastError.value && (
        <div class="notice trouble">
          <span>{lastError.value}</span>
          <button class="quiet" aria-label="Dismiss" onClick={() => (lastError.value = null)}>
            ✕
          </button>
        </div>
      )}
    </div>
  );
}
