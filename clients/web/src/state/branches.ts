/** Branches: sessions that continue an earlier part of another one, after a question was edited or asked again. */
import { type Message, type Session, newIdempotencyKey } from "everlong-client";
import { UserError } from "./errors.js";
import { addFound, addSession, loadSession, modelOf, nextPages, sessionPages, sessions, upgraded } from "./library.js";
import { draft } from "./questions.js";
import { navigate, route } from "./route.js";
import { client, retryWhileOffline } from "./server.js";
import { ask, loadMessages, takesQuestions } from "./turns.js";
import { type Upload, moveEnded, openConversation, uploadAgain, uploadAll, uploadFiles } from "./uploads.js";

/** The ids of sessions of which a branch is being created. */
const branching = new Set<string>();

/** Asks `question` in a new branch, which has the messages before the message `id`, and opens it. Does nothing at a second click. */
export async function askInBranch(session: Session, id: string, question: string): Promise<void> {
  if (branching.has(session.id)) return;
  branching.add(session.id);
  try {
    await branchAt(session, id, question);
  } finally {
    branching.delete(session.id);
  }
}

async function branchAt(session: Session, id: string, question: string): Promise<void> {
  const messages = await loadMessages(session.id); // another page may have extended an answer
  const index = messages.findIndex((message) => message.id === id);
  if (index < 0) throw new UserError("The conversation no longer has this question.");
  const past = messages.slice(0, index);
  const branch = await createBranch(session, session.documents, past, past.length ? session.title : null);
  if (takesQuestions(branch)) void ask(branch.id, question);
  else draft(branch.id, question);
  if (route.value.session === session.id) navigate({ session: branch.id, panel: null });
}

/** Uploads files, and continues the conversation in a branch with these documents too. Its memory reads the messages again. */
export async function addFiles(session: Session, files: readonly File[]): Promise<void> {
  await addDocuments(session, await uploadAll(files, session.id));
}

async function addDocuments(session: Session, ids: readonly string[]): Promise<void> {
  const added = ids.filter((id) => !session.documents.includes(id));
  if (added.length === 0) return;
  const messages = await loadMessages(session.id); // the page may not have loaded them, and others may have come during the upload
  const branch = await createBranch(session, [...session.documents, ...added], messages, session.title);
  moveEnded(session.id, branch.id);
  if (route.value.session === session.id) navigate({ session: branch.id, panel: null });
}

/** The conversation that is shown; undefined on the start view. */
async function openSession(): Promise<Session | undefined> {
  const shown = route.value.session;
  const find = () => sessions.value.find(({ id }) => id === shown);
  if (shown !== null && !find()) await loadSession(shown); // it may be older than those in the list
  return find();
}

/** Uploads files for the open conversation, or else for a new one. */
export async function uploadHere(files: readonly File[]): Promise<void> {
  const session = await openSession();
  return session ? addFiles(session, files) : uploadFiles(files);
}

/** Uploads a file that failed once more, for the open conversation or else for a new one. */
export async function retryUpload(upload: Upload): Promise<void> {
  const session = await openSession();
  const ids = await uploadAgain(upload);
  return session ? addDocuments(session, ids) : openConversation(ids);
}

async function createBranch(parent: Session, documents: string[], messages: readonly Message[], title: string | null): Promise<Session> {
  const model = modelOf(parent)?.id ?? null; // the server's first model continues the conversation of a model that is gone
  const options = { messages: [...messages], parent: parent.id, title, model, recall: parent.recall, idempotencyKey: newIdempotencyKey() };
  const branch = await retryWhileOffline(() => client.sessions.create(documents, options));
  addSession(branch);
  return branch;
}

/** Loads the branches of a conversation that are older than those in the list. */
export async function loadBranches({ id }: Session): Promise<void> {
  if (!upgraded.value || nextPages.value.sessions === null) return;
  for await (const page of sessionPages({ branchesOf: id })) addFound(page.data);
}

/** The sessions that branched off from the same one, that one included, oldest first. */
export function branchesOf(session: Session): Session[] {
  const known = new Map(sessions.value.map((each) => [each.id, each]));
  const root = (each: Session): string => {
    const parent = each.parent ? known.get(each.parent) : undefined;
    return parent ? root(parent) : (each.parent ?? each.id);
  };
  const own = root(session);
  return sessions.value.filter((each) => each.id === own || root(each) === own).sort((a, b) => a.created_at - b.created_at);
}
