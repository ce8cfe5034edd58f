import { useEffect } from "preact/hooks";
import { Ask, Help, KeyDialog, NameDialog } from "./dialogs.js";
import { spoken } from "./dialogue.js";
import { Home } from "./home.js";
import { sessions, titleOf, trouble } from "./library.js";
import { Memory } from "./memory.js";
import { Reader } from "./reader.js";
import { place } from "./route.js";
import { link, look, returned } from "./server.js";
import { pressed } from "./shortcuts.js";
import { Sidebar } from "./sidebar.js";
import { Dialogue } from "./talk.js";

export function App() {
  const { session, panel } = place.value;
  useEffect(() => {
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
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
        <main tabIndex={-1}>{session ? <Dialogue key={session} session={session} /> : <Home />}</main>
        {panel?.kind === "memory" && session && <Memory key={session} session={session} />}
        {panel?.kind === "text" && <Reader key={panel.document} {...panel} />}
      </div>
      <div class="unseen" role="status">
        {spoken.value}
      </div>
      <Trouble />
      <KeyDialog />
      <Help />
      <Ask />
      <NameDialog />
    </>
  );
}

/** What the page says about the server. */
function Banner() {
  const now = link.value;
  return (
    <div role="status" class="banner-place">
      {now.state === "away" && (
        <div class="banner">
          <span class="pulse" aria-hidden="true" />
          <span>
            <strong>{now.why}</strong> This page tries again by itself; nothing is lost.
          </span>
          <button onClick={() => void look()}>Try now</button>
        </div>
      )}
      {now.state === "there" && returned.value && <div class="banner good">The server is back.</div>}
    </div>
  );
}

function Trouble() {
  return (
    <div role="alert">
      {trouble.value && (
        <div class="trouble">
          <span>{trouble.value}</span>
          <button class="quiet" aria-label="Dismiss" onClick={() => (trouble.value = null)}>
            ✕
          </button>
        </div>
      )}
    </div>
  );
}
