/** Names of file formats for people. */
import type { Formats } from "everlong-client";
import { plural } from "./format.js";

const COMMON: Record<string, string> = { text: "Text", pdf: "PDF", docx: "Word", pptx: "PowerPoint", xlsx: "Excel", epub: "EPUB", html: "HTML" };

/** Returns the names of the common formats that the server accepts, and the number of others. */
export function formatNames({ data }: Formats): string {
  const names = data.flatMap(({ id }) => COMMON[id] ?? []);
  const others = data.length - names.length;
  if (others > 0) names.push(plural(others, "other format"));
  return names.length > 1 ? `${names.slice(0, -1).join(", ")} or ${names.at(-1)}` : names.join();
}

/** Whether a file of this name is an archive of files. The server detects the format of an upload by its content. */
export function isArchive(name: string): boolean {
  return /\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))$/i.test(name);
}
