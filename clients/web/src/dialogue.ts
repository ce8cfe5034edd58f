/** The dialogues: what was said in each session, and the answers that are being written. */
import { signal } from "@preact/signals";
import type { Conversation, Evidence, Message } from "everlong-client";
import { here } from "./kept.js";
import { heard, words } from "./library.js";
import { alive, away, client, gone, link, look, surely, there } from "./server.js";

/** A question whose answer is not complete. */
export interface Turn {
  question: string;
  text: string;
  evidence: Evidence[] | null;
  state: "asked" | "answering" | "stopping" | "failed";
  error: string | null;
}

export const said = signal<ReadonlyMap<string, readonly Message[]>>(new Map());
export const turns = signal<ReadonlyMap<string, Turn>>(new Map());
/** For those who hear the page: whole sentences of the answer. */
export const spoken = signal("");

const open = new Map<string, Conversation>();

export async function load(session: string): Promise<void> {
  const messages = await surely(() => client.sessions.messages(session));
  said.value = new Map(said.value).set(session, messages);
}

function put(session: string, turn: Turn | null): void {
  const changed = new Map(turns.value);
  if (turn) changed.set(session, turn);
  else changed.delete(session);
  turns.value = changed;
}

/** Asks, whatever happens to the server meanwhile; the question is a draft until it is answered. */
export async function ask(session: string, question: string): Promise<void> {
  const conversation = client.sessions.connect(session);
  open.set(session, conversation);
  conversation.onlost = (error) => void (error ? away("The connection was lost.") : look());
  const fresh: Turn = { question, text: "", evidence: null, state: "asked", error: null };
  const now = () => turns.value.get(session) ?? fresh;
  const update = (change: Partial<Turn>) => put(session, { ...now(), ...change });
  put(session, fresh);
  draft(session, question);
  const sentences = new Sentences();
  // Words that are to be drawn with the next frame: a page that drew each of a quick model's would come to nothing else, not to a click.
  let unseen = "";
  let frame = 0;
  const show = () => {
    cancelAnimationFrame(frame);
    frame = 0;
    if (!unseen) return;
    update({ text: now().text + unseen, state: now().state === "stopping" ? "stopping" : "answering" });
    sentences.add(unseen);
    unseen = "";
  };
  let unread = false;
  try {
    for (;;) {
      try {
        for await (const event of conversation.send(question)) {
          alive();
          if (event.type === "response.created") {
            unseen = "";
            sentences.restart();
            update({ text: "", evidence: null, state: now().state === "stopping" ? "stopping" : "asked" });
          } else if (event.type === "response.evidence") update({ evidence: event.evidence });
          else if (event.type === "response.output_text.delta") {
            unseen += event.delta;
            frame ||= requestAnimationFrame(show);
          } else if (event.type === "response.completed") {
            show();
            sentences.end();
            unread = event.message.finish_reason === "cancelled" && event.message.content === "";
          }
        }
        break;
      } catch (error) {
        if (!gone(error)) throw error;
        await there();
      }
    }
    if (unread) return update({ state: "failed", error: "Stopped before anything was written." });
    await load(session);
    draft(session, "");
    put(session, null);
    heard(await surely(() => client.sessions.get(session)));
  } catch (error) {
    show();
    update({ state: "failed", error: words(error) });
  } finally {
    conversation.close();
    open.delete(session);
    if (link.value.state === "away") void look();
  }
}

/** Ends the answer and keeps what was said. */
export function stop(session: string): void {
  const turn = turns.value.get(session);
  if (turn) put(session, { ...turn, state: "stopping" });
  open.get(session)?.cancel();
}

/** Gives a failed question back. */
export function withdraw(session: string): string {
  const question = turns.value.get(session)?.question ?? "";
  put(session, null);
  return question;
}

const DRAFT = "everlong.draft.";
const NEXT = "everlong.next.";

/** What is being typed in a session, or asked; outlives a reload. */
export function draft(session: string, text?: string): string {
  return kept(DRAFT + session, text);
}

/** What is being typed while an answer is written. */
export function next(session: string, text?: string): string {
  return kept(NEXT + session, text);
}

function kept(name: string, text?: string): string {
  if (text !== undefined) here.set(name, text || null);
  return here.get(name) ?? "";
}

/** Says an answer sentence by sentence: word by word nobody could follow. */
class Sentences {
  #rest = "";

  restart(): void {
    this.#rest = "";
  }

  add(text: string): void {
    this.#rest += text;
    const whole = /^[\s\S]*[.!?:\n](?=\s)/.exec(this.#rest);
    if (!whole) return;
    spoken.value = whole[0];
    this.#rest = this.#rest.slice(whole[0].length);
  }

  end(): void {
    spoken.value = `${this.#rest} (end of the answer)`;
  }
}
