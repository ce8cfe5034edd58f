/** Pictures of pages of a PDF, with a passage marked. */
import { NotFoundError } from "everlong-client";
import { useEffect, useState } from "preact/hooks";
import { errorText } from "../state/errors.js";
import { nameOf } from "../state/library.js";
import { client, retryWhileOffline } from "../state/server.js";

const WIDTH = 1000; // pixels

/** A page, and a passage to mark on it; without one, `start` and `end` are null. */
interface Place {
  document: string;
  page: number;
  start: number | null;
  end: number | null;
}

interface Shown extends Place {
  large: boolean;
  /** Called if the document has no such page. */
  beyond: (() => void) | null;
}

/** The page on which a passage begins, and on demand those before and after it. */
export function PagePictures({ document, page: first, start, end }: Place) {
  const [page, setPage] = useState(first);
  /** The last page, once the reader has gone beyond it. */
  const [last, setLast] = useState<number | null>(null);
  const [large, setLarge] = useState(false);
  useEffect(() => setPage(first), [document, first, start]);
  useEffect(() => setLast(null), [document]);
  const beyond = () => {
    setLast(page - 1);
    setPage(page - 1);
  };
  return (
    <>
      <div class="pages">
        <button class="small" disabled={page === 1} onClick={() => setPage(page - 1)}>
          Page before
        </button>
        <span class="note" role="status">
          Page {page}
          {page === last && ", the last"}
        </span>
        <button class="small" disabled={page === last} onClick={() => setPage(page + 1)}>
          Page after
        </button>
        <button class="small" aria-pressed={large} onClick={() => setLarge(!large)}>
          Enlarge
        </button>
      </div>
      <PagePicture {...{ document, page, start, end, large }} beyond={page > 1 ? beyond : null} />
    </>
  );
}

function PagePicture({ document: id, page, start, end, large, beyond }: Shown) {
  const [address, setAddress] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    setError(null);
    const stop = new AbortController();
    let made: string | null = null;
    const show = async () => {
      const options = { width: WIDTH, ...(start !== null && end !== null && { startByte: start, endByte: end }), signal: stop.signal };
      const picture = await retryWhileOffline(() => client.documents.page(id, page, options));
      if (stop.signal.aborted) return;
      setAddress((made = URL.createObjectURL(picture)));
      setError(null);
    };
    show().catch((error: unknown) => {
      if (stop.signal.aborted) return;
      if (beyond && error instanceof NotFoundError && error.code === "page_not_found") beyond();
      else setError(errorText(error));
    });
    return () => {
      stop.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [id, page, start, end]);
  if (error) return <p class="bad">{error}</p>;
  if (!address) return <p class="note">Drawing page {page}…</p>;
  const alt = `Page ${page} of ${nameOf(id)}${start === null ? "" : ", with the passage marked"}`;
  return <img class={large ? "page-picture large-picture" : "page-picture"} src={address} alt={alt} />;
}
