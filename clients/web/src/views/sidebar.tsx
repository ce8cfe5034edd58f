import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { helpOpen } from "../components/dialogs.js";
import { LoadMore } from "../components/load-more.js";
import { ago, plural } from "../lib/format.js";
import { documentsOf, loadMore, loaded, model, nextPages, sessions, showErrors, titleOf } from "../state/library.js";
import { hrefTo, route } from "../state/route.js";
import { connection } from "../state/server.js";

/** Whether the sidebar is open on a narrow screen, where it covers the page. */
export const sidebarOpen = signal(false);

export function Sidebar() {
  const { session } = route.value;
  const open = sidebarOpen.value;
  const nav = useRef<HTMLElement>(null);
  const close = () => (sidebarOpen.value = false);
  useLayoutEffect(() => {
    if (!open) return;
    nav.current!.querySelector("a")!.focus();
    return () => document.querySelector<HTMLElement>(".menu")?.focus();
  }, [open]);
  return (
    <>
      <div class={open ? "shade" : "shade away"} onClick={close} />
      <nav ref={nav} class={open ? "sidebar open" : "sidebar"} aria-label="Conversations">
        <div class="brand">
          <img src="/assets/icon.svg" alt="" width="26" height="26" />
          <span>everlong</span>
        </div>
        <a class="new" href={hrefTo({ session: null, panel: null })} onClick={close} aria-current={session === null ? "page" : undefined}>
          New conversation
        </a>
        <ul>
          {sessions.value.map((each) => (
            <li key={each.id}>
              <a href={hrefTo({ session: each.id, panel: null })} onClick={close} aria-current={each.id === session ? "page" : undefined}>
                <span class="title">{titleOf(each)}</span>
                <span class="note">
                  <span class="title">
                    {each.status === "reading" ? "being read" : each.title !== null ? documentsOf(each) : each.messages ? plural(each.messages / 2, "question") : "no questions yet"}
                  </span>{" "}
                  · {ago(each.created_at)}
                </span>
              </a>
            </li>
          ))}
        </ul>
        {nextPages.value.sessions && <LoadMore items=".sidebar li a" label="Older conversations" load={() => showErrors(() => loadMore("sessions"))} />}
        {loaded.value && sessions.value.length === 0 && <p class="note none">No conversations yet.</p>}
        <footer>
          <span class={`light ${connection.value.state}`} aria-hidden="true" />
          <span class="note">
            {model.value ? (
              <>
                {model.value.id}
                <br />
                memory: {model.value.memory}
                {model.value.memory_trained === false && ", untrained, so answers are nonsense"}
              </>
            ) : (
              "connecting…"
            )}
          </span>
          <button class="quiet" aria-label="Keys and settings" onClick={() => (helpOpen.value = true)}>
            ?
          </button>
        </footer>
      </nav>
    </>
  );
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
