/** The messages of each session, and the turns whose answers are being generated. */
import { computed, signal } from "@preact/signals";
import type { Conversation, Evidence, Message, Model, Session } from "everlong-client";
import { NotFoundError, StreamError } from "everlong-client";
import { Paced } from "../lib/paced.js";
import { errorText } from "./errors.js";
import { modelOf, sessions, showErrors, updateSession, withSession } from "./library.js";
import { askedQuestions, forgetAsked, isIn, isWaiting, markWaiting, rememberAsked } from "./questions.js";
import { route } from "./route.js";
import { checkServer, client, connection, markAlive, markOffline, reportOutage, retryWhileOffline, serverOnline } from "./server.js";
import { answerSettings, sampling } from "./settings.js";

/** A question and its answer, which is not complete yet. */
export interface Turn {
  question: string;
  text: string;
  evidence: Evidence[] | null;
  state: "asked" | "answering" | "stopping" | "failed";
  error: string | null;
  /** Whether it extends the last answer, with whose text it begins, instead of being a new one. */
  continues?: boolean;
  /** Whether another page has sent the question, such as this one before a reload. */
  followed?: boolean;
}

export const sessionMessages = signal<ReadonlyMap<string, readonly Message[]>>(new Map());
export const turns = signal<ReadonlyMap<string, Turn>>(new Map());
/** The ids of the sessions whose answers this page waits for, separated by spaces. Unlike `turns`, it does not change with each word. */
export const awaited = computed(() => [...turns.value].flatMap(([id, { state }]) => (state === "failed" ? [] : id)).join(" "));
/** The text for screen readers: the last complete sentences of the answer. */
export const announcement = signal("");

const conversations = new Map<string, Conversation>();
/** The ids of sessions for which `follow` is running. */
const following = new Set<string>();
const FOLLOW_DELAY = 500; // ms

/** The number of the request whose response is in `sessionMessages`, for each session. */
const shownRequest = new Map<string, number>();
let requestCount = 0;

/** Loads the messages of a session, and returns them. Ignores a response that comes after the response to a newer request. */
export async function loadMessages(session: string): Promise<readonly Message[]> {
  const load = async () => [++requestCount, await client.sessions.messages(session)] as const;
  const [number, messages] = await withSession(session, () => retryWhileOffline(load));
  if (number > (shownRequest.get(session) ?? 0)) {
    shownRequest.set(session, number);
    sessionMessages.value = new Map(sessionMessages.value).set(session, messages);
  }
  return sessionMessages.value.get(session) ?? messages;
}

function setTurn(session: string, turn: Turn | null): void {
  const changed = new Map(turns.value);
  if (turn) changed.set(session, turn);
  else changed.delete(session);
  turns.value = changed;
}

/** Whether a session takes questions. Until its documents are read, it takes those for which the server searches passages. */
export function takesQuestions(session: Session): boolean {
  const { status, recall } = session;
  if (status !== "reading") return status === "ready";
  if (modelOf(session)?.recall_passages === 0) return false;
  return (answerSettings.value.words ?? (recall === false ? 0 : recall?.passages)) !== 0;
}

/** The model that answers in a session, once it is known. */
function servedModel(session: string): Model | null {
  const known = sessions.value.find(({ id }) => id === session);
  return known ? modelOf(known) : null;
}

/** Sends a question and shows the answer. Repeats it through outages of the server. The browser keeps the question until then.
 * With `extended`, the last answer, this one is extended instead. If the server has a newer one, nothing is extended. */
export async function ask(session: string, question: string, extended: Message | null = null): Promise<void> {
  const conversation = client.sessions.connect(session);
  conversations.set(session, conversation);
  conversation.onlost = (error) => void (error ? markOffline("The connection was lost.") : checkServer());
  const begin = { text: extended?.content ?? "", evidence: extended?.evidence ?? null };
  const fresh: Turn = { question, ...begin, state: "asked", error: null, continues: extended !== null };
  const now = () => turns.value.get(session) ?? fresh;
  const update = (change: Partial<Turn>) => setTurn(session, { ...now(), ...change });
  setTurn(session, fresh);
  if (!extended) rememberAsked(session, question, sessionMessages.value.get(session)?.length ?? sessions.value.find(({ id }) => id === session)?.messages ?? 0);
  const stopWaiting = markWaiting(session);
  const sentences = new SentenceAnnouncer(session);
  let pendingText = ""; // which `showing` will show
  const showing = new Paced(() => {
    if (!pendingText) return;
    update({ text: now().text + pendingText, state: now().state === "stopping" ? "stopping" : "answering" });
    sentences.add(pendingText);
    pendingText = "";
  });
  let emptyAnswer = false;
  let finish = true;
  try {
    for (;;) {
      try {
        for await (const event of conversation.send(question, { ...sampling(servedModel(session)), ...(finish ? { on_disconnect: "finish" } : {}), ...(extended ? { continue_answer: extended.id } : {}) })) {
          markAlive();
          if (event.type === "response.created") {
            pendingText = "";
            sentences.restart();
            update({ ...begin, state: now().state === "stopping" ? "stopping" : "asked" });
          } else if (event.type === "response.evidence") update({ evidence: event.evidence });
          else if (event.type === "response.output_text.delta") {
            pendingText += event.delta;
            showing.request();
          } else if (event.type === "response.completed") {
            showing.runNow();
            sentences.end();
            emptyAnswer = event.message.finish_reason === "cancelled" && event.message.content === "";
          }
        }
        break;
      } catch (error) {
        // During an upgrade, the page may reach a server that does not know the field yet.
        if (finish && error instanceof StreamError && error.param === "on_disconnect") finish = false;
        else if (extended && error instanceof StreamError && error.code === "nothing_to_continue") break; // another answer is the last one, or this one is complete: show what there is
        else if (!reportOutage(error)) throw error;
        else await serverOnline();
      }
    }
    if (emptyAnswer && !extended) return update({ state: "failed", error: "The answer was stopped before any text was generated." });
    await loadMessages(session);
    if (!extended) forgetAsked(session);
    setTurn(session, null);
    updateSession(await retryWhileOffline(() => client.sessions.get(session)));
  } catch (error) {
    showing.runNow();
    update({ state: "failed", error: errorText(error) });
  } finally {
    stopWaiting();
    conversation.close();
    conversations.delete(session);
    if (connection.value.state === "offline") void checkServer();
  }
}

/**
 * Shows the answer to a question that this page has not sent, or not since it was loaded, until the answer is complete. A question
 * of another program is shown only then.
 */
export async function follow(session: string): Promise<void> {
  if (turns.value.has(session) || following.has(session)) return;
  following.add(session);
  try {
    for (;;) {
      const running = await retryWhileOffline(() => client.sessions.running(session));
      const turn = turns.value.get(session);
      if (turn && !turn.followed) return; // the user asked something else here
      if (running) {
        const state = turn?.state === "stopping" ? turn.state : running.text ? "answering" : "asked";
        setTurn(session, { question: running.question, text: running.text, evidence: running.evidence ?? null, state, error: null, followed: true, continues: running.continues === true });
      }
      const now = await retryWhileOffline(() => client.sessions.get(session));
      if (!now.answering) {
        await loadMessages(session);
        updateSession(now);
        const shown = turns.value.get(session); // perhaps only since the request above
        const answered = !shown || sessionMessages.value.get(session)?.at(-2)?.content === shown.question;
        if (!answered) return setTurn(session, { ...shown, state: "failed", error: "The server stopped before the answer was complete." });
        setTurn(session, null);
        break;
      }
      await new Promise((resume) => setTimeout(resume, FOLLOW_DELAY));
    }
  } catch (error) {
    setTurn(session, null);
    if (error instanceof NotFoundError) return; // the conversation was deleted
    throw error;
  } finally {
    following.delete(session);
  }
  await restoreAsked(session); // forgets the question that has been answered, and shows one that has not
}

/** Shows a question of this browser that the server did not answer while the page was closed, so that it can be asked again. */
export async function restoreAsked(session: string): Promise<void> {
  const asked = askedQuestions.value.get(session);
  if (!asked || turns.value.has(session) || (await isWaiting(session))) return;
  const now = await retryWhileOffline(() => client.sessions.get(session));
  updateSession(now);
  if (now.answering) return; // `follow` shows it
  await loadMessages(session); // the answer may have been complete only since the page loaded them
  if (turns.value.has(session) || following.has(session) || askedQuestions.value.get(session) !== asked) return;
  if (isIn(sessionMessages.value.get(session) ?? [], asked)) return forgetAsked(session);
  const error = "This question has no answer yet.";
  setTurn(session, { question: asked.question, text: "", evidence: null, state: "failed", error });
}

/** Cancels the answer and keeps the text generated so far. */
export function stop(session: string): void {
  const turn = turns.value.get(session);
  if (turn) setTurn(session, { ...turn, state: "stopping" });
  if (turn?.followed) void showErrors(() => retryWhileOffline(() => client.sessions.cancel(session)));
  else conversations.get(session)?.cancel();
}

/** Removes a failed turn and returns its question. */
export function withdraw(session: string): string {
  const question = turns.value.get(session)?.question ?? "";
  forgetAsked(session);
  setTurn(session, null);
  return question;
}

/** Announces an answer to screen readers sentence by sentence, because single words are hard to follow, while its session is shown. */
class SentenceAnnouncer {
  readonly #session: string;
  #rest = "";

  constructor(session: string) {
    this.#session = session;
  }

  restart(): void {
    this.#rest = "";
  }

  add(text: string): void {
    this.#rest += text;
    const whole = /^[\s\S]*[.!?:\n](?=\s)/.exec(this.#rest);
    if (!whole) return;
    this.#say(whole[0]);
    this.#rest = this.#rest.slice(whole[0].length);
  }

  end(): void {
    this.#say(`${this.#rest} (end of the answer)`);
  }

  #say(text: string): void {
    if (route.value.session === this.#session) announcement.value = text;
  }
}
