/** Pictures of pages of a PDF, with a passage marked. */
import { useEffect, useState } from "preact/hooks";
import { errorText, nameOf } from "../state/library.js";
import { client, retryWhileOffline } from "../state/server.js";

const WIDTH = 1000; // pixels

interface Place {
  document: string;
  page: number;
  start: number;
  end: number;
}

/** The page on which a passage begins, and on demand those before and after it. */
export function PagePictures({ document, page: first, start, end }: Place) {
  const [page, setPage] = useState(first);
  useEffect(() => setPage(first), [document, first, start]);
  return (
    <>
      <p class="row">
        <button class="quiet small" disabled={page === 1} onClick={() => setPage(page - 1)}>
          Page before
        </button>
        <span class="note">Page {page}</span>
        <button class="quiet small" onClick={() => setPage(page + 1)}>
          Page after
        </button>
      </p>
      <PagePicture {...{ document, page, start, end }} />
    </>
  );
}

function PagePicture({ document: id, page, start, end }: Place) {
  const [address, setAddress] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
    setError(null);
    const stop = new AbortController();
    let made: string | null = null;
    const show = async () => {
      const options = { width: WIDTH, startByte: start, endByte: end, signal: stop.signal };
      const picture = await retryWhileOffline(() => client.documents.page(id, page, options));
      if (stop.signal.aborted) return;
      setAddress((made = URL.createObjectURL(picture)));
      setError(null);
    };
    show().catch((error: unknown) => stop.signal.aborted || setError(errorText(error)));
    return () => {
      stop.abort();
      if (made) URL.revokeObjectURL(made);
    };
  }, [id, page, start, end]);
  if (error) return <p class="bad">{error}</p>;
  if (!address) return <p class="note">Drawing page {page}…</p>;
  return <img class="page-picture" src={address} alt={`Page ${page} of ${nameOf(id)}, with the passage marked`} />;
}
