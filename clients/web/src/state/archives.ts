/** The question whether the files of an archive become a document each. */
import { signal } from "@preact/signals";

export interface ArchiveQuestion {
  /** The names of the archives. */
  names: readonly string[];
  /** `each`: a document for each file; null: none of the archives is uploaded. */
  answer: (each: boolean | null) => void;
}

export const archiveQuestion = signal<ArchiveQuestion | null>(null);

/** Asks whether each file of these archives becomes a document of its own. Resolves to null if the user cancels. */
export function askEachFile(names: readonly string[]): Promise<boolean | null> {
  archiveQuestion.value?.answer(null); // other archives have been dropped meanwhile
  return new Promise((resolve) => {
    const answer = (each: boolean | null) => {
      archiveQuestion.value = null;
      resolve(each);
    };
    archiveQuestion.value = { names, answer };
  });
}
