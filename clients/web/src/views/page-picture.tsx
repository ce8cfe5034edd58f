/** A picture of a page of a PDF, with the passage marked. */
import { useEffect, useState } from "preact/hooks";
import { errorText, nameOf } from "../state/library.js";
import { client, retryWhileOffline } from "../state/server.js";

const WIDTH = 1000; // pixels

export function PagePicture({ document: id, page, start, end }: { document: string; page: number; start: number; end: number }) {
  const [address, setAddress] = useState<string | null>(null);
  const [error, setError] = useState<string | null>(null);
  useEffect(() => {
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
