/** The sidebar: the list of conversations, their search, and the served model. */
import { signal } from "@preact/signals";
import type { Session } from "everlong-client";
import { useLayoutEffect, useRef } from "preact/hooks";
import { askConfirmation, helpOpen } from "../components/dialogs.js";
import { LoadMore } from "../components/load-more.js";
import { Menu } from "../components/menu.js";
import { settingsOpen } from "../components/settings-dialog.js";
import { ago, plural } from "../lib/format.js";
import { OTHERS, chooseImport, exportJson, found, grouping, groups, hasMore, query, removeSelected, selection, serverSearch, showMore, toggleSelected } from "../state/conversations.js";
import { documentsOf, loaded, model, sessions, showErrors, titleOf } from "../state/library.js";
import { isUnanswered } from "../state/questions.js";
import { hrefTo, route } from "../state/route.js";
import { connection } from "../state/server.js";
import { awaited } from "../state/turns.js";

/** Whether the sidebar is open on a narrow screen, where it covers the page. */
export const sidebarOpen = signal(false);

/** Changes once a minute, so that the ages of the conversations stay true. */
const minute = signal(0);
setInterval(() => minute.value++, 60_000);

// Outside of the components: an entry is rendered again only if its properties change.
const close = () => {
  sidebarOpen.value = false;
};

/** Closes the sidebar when the focus moves to what it covers. */
function closeBehindFocus({ currentTarget, relatedTarget }: preact.TargetedFocusEvent<HTMLElement>): void {
  if (relatedTarget instanceof Element && !currentTarget.contains(relatedTarget) && !relatedTarget.closest("dialog")) close();
}

export function Sidebar() {
  const { session } = route.value;
  const open = sidebarOpen.value;
  const nav = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    if (!open) return;
    nav.current!.querySelector("a")!.focus();
    return () => document.querySelector<HTMLElement>(".menu")?.focus();
  }, [open]);
  return (
    <>
      <div class={open ? "shade" : "shade away"} onClick={close} />
      <nav ref={nav} class={open ? "sidebar open" : "sidebar"} aria-label="Conversations" onFocusOut={open ? closeBehindFocus : undefined}>
        <div class="brand">
          <img src="/assets/icon.svg" alt="" width="26" height="26" />
          <span>everlong</span>
        </div>
        <a class="new" href={hrefTo({ session: null, panel: null })} onClick={close} aria-current={session === null ? "page" : undefined}>
          New conversation
        </a>
        <Finder />
        <div class="conversations">
          {query.value.trim() && found.value.length > 0 && (
            <p class="note none" role="status">
              {plural(found.value.length, "conversation")} found{!serverSearch.value.done && ", searching on…"}
            </p>
          )}
          {groups.value.map(({ name, sessions }) => {
            const entries = (
              <ul>
                {sessions.map((each) => (
                  <Entry key={each.id} session={each} here={each.id === session} />
                ))}
              </ul>
            );
            return (
              <section key={name} aria-label={name}>
                {name === OTHERS ? (
                  <details open={Boolean(query.value) || sessions.some(({ id }) => id === session)}>
                    <summary class="note">
                      {name} ({sessions.length})
                    </summary>
                    {entries}
                  </details>
                ) : (
                  <>
                    <h2 class="note">{name}</h2>
                    {entries}
                  </>
                )}
              </section>
            );
          })}
          {loaded.value && groups.value.length === 0 && <p class="note none">{!serverSearch.value.done ? "Searching…" : query.value.trim() ? "No conversation has these words." : "No conversations yet."}</p>}
          {hasMore.value && <LoadMore items=".sidebar li a" label="Older conversations" load={() => showErrors(showMore)} />}
        </div>
        <footer>
          <span class={`light ${connection.value.state}`} aria-hidden="true" />
          <span class="note">
            {model.value ? (
              <>
                {model.value.id}
                <br />
                {model.value.memory === "window" ? "keeps the latest text word for word" : "keeps a compressed memory of the text"}
                {model.value.memory_trained === false && " (untrained: answers are nonsense)"}
              </>
            ) : (
              "connecting…"
            )}
          </span>
          <button class="quiet" aria-label="Settings" title="Settings" onClick={() => (settingsOpen.value = true)}>
            ⚙
          </button>
          <button class="quiet" aria-label="Keys" title="Keys" onClick={() => (helpOpen.value = true)}>
            ?
          </button>
        </footer>
      </nav>
    </>
  );
}

/** Search, groups, and what can be done with several conversations. */
function Finder() {
  const chosen = selection.value;
  if (chosen === null)
    return (
      <div class="finder" role="search">
        <input type="search" dir="auto" aria-label="Search conversations" placeholder="Search" title="Searches titles, messages and the names of documents" value={query.value} onInput={(event) => (query.value = event.currentTarget.value)} />
        <Menu label="Conversations: more" sign="⋯">
          <button onClick={() => (grouping.value = grouping.value === "date" ? "document" : "date")}>
            {grouping.value === "date" ? "Group by document" : "Group by date"}
          </button>
          <button onClick={() => (selection.value = new Set())}>Select several</button>
          <button onClick={chooseImport}>Import…</button>
        </Menu>
      </div>
    );
  const all = sessions.value.filter(({ id }) => chosen.has(id));
  return (
    <div class="finder" role="group" aria-label="Selected conversations">
      <button class="small" onClick={() => (selection.value = new Set(all.length < found.value.length ? found.value.map(({ id }) => id) : []))}>
        {all.length < found.value.length ? "All" : "None"}
      </button>
      <button class="small" disabled={all.length === 0} onClick={() => void showErrors(() => exportJson(all))}>
        Export
      </button>
      <button
        class="small"
        disabled={all.length === 0}
        onClick={() =>
          void showErrors(async () => {
            const detail = "This deletes their memories and messages. Their documents are kept.";
            if (await askConfirmation(`Delete ${plural(all.length, "conversation")}?`, detail, "Delete")) await removeSelected();
          })
        }
      >
        Delete {all.length || ""}
      </button>
      <button class="small quiet" onClick={() => (selection.value = null)}>
        Done
      </button>
    </div>
  );
}

function Entry({ session: each, here }: { session: Session; here: boolean }) {
  const chosen = selection.value;
  minute.value;
  const words = (
    <>
      <span class="title">{titleOf(each)}</span>
      <span class="note">
        <span class="title">{stateOf(each)}</span> · {ago(each.created_at)}
      </span>
    </>
  );
  return (
    <li>
      {chosen ? (
        <label class="selecting" title={titleOf(each)}>
          <input type="checkbox" aria-label={`Select ${titleOf(each)}`} checked={chosen.has(each.id)} onChange={() => toggleSelected(each.id)} />
          <span class="entry">{words}</span>
        </label>
      ) : (
        <a href={hrefTo({ session: each.id, panel: null })} onClick={close} aria-current={here ? "page" : undefined} title={titleOf(each)}>
          {words}
        </a>
      )}
    </li>
  );
}

/** What the list says about a conversation: what it waits for, or else its documents. */
function stateOf(session: Session): string {
  if (session.status === "reading") return "being read";
  if (session.answering || awaited.value.includes(session.id)) return "being answered";
  if (isUnanswered(session)) return "a question without an answer";
  return session.title !== null ? documentsOf(session) : "no questions yet";
}

/** The button that opens the sidebar on a narrow screen. */
export function MenuButton() {
  return (
    <button
      class="menu quiet"
      aria-label="Conversations"
      aria-expanded={sidebarOpen.value}
      onClick={() => (sidebarOpen.value = true)}
    >
      ☰
    </button>
  );
}
