import { signal } from "@preact/signals";
import { useLayoutEffect, useRef } from "preact/hooks";
import { helping } from "./dialogs.js";
import { attempt, documentsOf, loaded, model, more, older, sessions, titleOf } from "./library.js";
import { More } from "./more.js";
import { ago, many } from "./numbers.js";
import { address, place } from "./route.js";
import { link } from "./server.js";

/** Whether it is open where there is no room for it beside the rest. */
export const sidebar = signal(false);

export function Sidebar() {
  const { session } = place.value;
  const open = sidebar.value;
  const nav = useRef<HTMLElement>(null);
  const close = () => (sidebar.value = false);
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
        <a class="new" href={address({ session: null, panel: null })} onClick={close} aria-current={session === null ? "page" : undefined}>
          New conversation
        </a>
        <ul>
          {sessions.value.map((each) => (
            <li key={each.id}>
              <a href={address({ session: each.id, panel: null })} onClick={close} aria-current={each.id === session ? "page" : undefined}>
                <span class="title">{titleOf(each)}</span>
                <span class="note">
                  <span class="title">
                    {each.status === "reading" ? "being read" : each.title !== null ? documentsOf(each) : each.messages ? many(each.messages / 2, "question") : "no questions yet"}
                  </span>{" "}
                  · {ago(each.created_at)}
                </span>
              </a>
            </li>
          ))}
        </ul>
        {more.value.sessions && <More items=".sidebar li a" words="Older conversations" work={() => attempt(() => older("sessions"))} />}
        {loaded.value && sessions.value.length === 0 && <p class="note none">No conversations yet.</p>}
        <footer>
          <span class={`light ${link.value.state}`} aria-hidden="true" />
          <span class="note">
            {model.value ? (
              <>
                {model.value.id}
                <br />
                memory: {model.value.memory}
                {model.value.memory_trained === false && ", untrained: answers are nonsense"}
              </>
            ) : (
              "connecting…"
            )}
          </span>
          <button class="quiet" aria-label="Keys and settings" onClick={() => (helping.value = true)}>
            ?
          </button>
        </footer>
      </nav>
    </>
  );
}

/** The button that opens it, shown where it is hidden. */
export function Menu() {
  return (
    <button
      class="menu quiet"
      aria-label="Conversations"
      aria-expanded={sidebar.value}
      onClick={() => (sidebar.value = true)}
    >
      ☰
    </button>
  );
}
