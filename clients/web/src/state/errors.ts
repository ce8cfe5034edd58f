/** Errors in words that say what the user can do. The server's own message, which is written for programmers, is shown on demand. */
import { APIStatusError, EverlongError, StreamError } from "everlong-client";

/** What the user can mend, as the message says. */
export class UserError extends Error {}

/** Errors that can have many causes, by their code. The server's messages for other codes are shown as they are. */
const BY_CODE: Record<string, string> = {
  bytes_limit: "Your space on this server is full. Delete documents or conversations that you no longer need, then try again.",
  queued_limit: "Too many of your documents are waiting to be read. Try again when the server has read some of them.",
  tokens_limit: "You have used up your limit of text for today. Try again tomorrow.",
  requests_limit: "You have sent too many requests in the last minute. Try again in a minute.",
  streams_limit: "Too many of your questions are being answered. Try again when one of the answers is complete.",
  sessions_limit: "You have as many conversations as this server allows. Delete some, then try again.",
  overloaded: "The server is busy. Try again in a minute.",
  missing_scope: "Your API key does not allow this. Ask the person who runs this server for another key.",
  state_unusable: "This conversation belongs to a model that this server no longer has. Start a new conversation about its documents.",
  session_not_found: "This conversation was deleted.",
  document_not_found: "This document was deleted.",
  internal_error: "The server has failed. Try again. If it fails again, tell the person who runs it.",
};

export function errorText(error: unknown): string {
  if (error instanceof UserError) return error.message;
  if (error instanceof EverlongError) return BY_CODE[codeOf(error) ?? ""] ?? sentence(error.message);
  return `This page has an error: ${String((error as Error)?.message ?? error)}`;
}

function codeOf(error: unknown): string | null {
  return error instanceof APIStatusError || error instanceof StreamError ? error.code : null;
}

/** The message as a sentence: the server's messages begin with a small letter, unless that is the name of a field. */
function sentence(message: string): string {
  const begun = /^[a-z]+[ ,]/.test(message) ? message[0]!.toUpperCase() + message.slice(1) : message;
  return /[.!?…]$/.test(begun) ? begun : `${begun}.`;
}

/** Why an upload failed. */
export interface UploadProblem {
  text: string;
  /** The server's message, if `text` does not contain it. */
  detail: string | null;
  /** Whether the same file may be accepted later. */
  again: boolean;
}

/** `formats`: names of formats that the server reads. `limit`: the largest file, such as "4 GB". */
export function uploadProblem(error: unknown, formats: string, limit: string): UploadProblem {
  const text = refusal(error, formats, limit);
  if (text !== null) return { text, detail: (error as APIStatusError).message, again: false };
  const known = BY_CODE[codeOf(error) ?? ""];
  return { text: errorText(error), detail: known ? (error as EverlongError).message : null, again: true };
}

/** Why the server refuses this file now and later; null for other errors. */
function refusal(error: unknown, formats: string, limit: string): string | null {
  if (!(error instanceof APIStatusError)) return null;
  const { code, message, param } = error;
  if (code === "queued_limit" && message.includes("the archive has")) return "This archive has more files than you may have waiting on this server. Split it into smaller archives.";
  if (code === "unsupported_media_type" && message.includes("not an archive")) return "This file is not an archive. Choose it again, and upload it as one document.";
  if (code === "unsupported_media_type" && message.includes("pip install"))
    return "This server does not recognise text in pictures. Choose a file that contains text, or ask the person who runs the server to install everlong[ocr].";
  if (code === "unsupported_media_type") return `The server cannot read this kind of file. It reads ${formats}: save the text in one of these formats, and choose that file.`;
  if (code === "empty_document") return "There is no text in this file. Choose another one.";
  if (code === "too_large") return `This file, or the text in it, is larger than this server accepts (${limit}). Split it, and choose the parts.`;
  if (code === "unreadable_document" && /encrypt|password/.test(message)) return "This file is protected by a password. Save a copy without the password, and choose that one.";
  if (code === "unreadable_document" && message.includes("there is no text")) return "The server found no text in this file. If it consists of pictures, choose a version with text.";
  if (code === "unreadable_document") return "The server cannot read this file: it is damaged, or too complex. Open it in the program that made it, save it again, and choose the new file.";
  if (param === "filename") return "The server does not accept the name of this file. Rename it with letters and digits, and choose it again.";
  return null;
}
