/** The progress of a conversion. The server converts these small files at once, so `Converting` holds their uploads back. */
import { expect, test } from "vitest";
import { Everlong, UnprocessableEntityError } from "../src/index.js";

const URL = process.env["EVERLONG_URL"]!;
const TEXT = "The wind was cold. ".repeat(40);

type Page = { page: number | null; pages: number | null };
const at = (page: number | null): Page => ({ page, pages: page && 12 });

/** Sends the request that waits for the conversion only after it has answered requests for the progress: with a page, or a status. */
class Converting {
  /** The keys of the requests for the progress, and of the uploads that were held back. */
  readonly asked: (string | null)[] = [];
  readonly uploaded: (string | null)[] = [];
  readonly client = new Everlong({ baseUrl: URL, retries: 0, fetch: (url, init) => this.#fetch(String(url), init) });
  readonly #answers: (Page | number)[];
  #release = () => {};
  readonly #released = new Promise<void>((resolve) => (this.#release = resolve));

  constructor(...answers: (Page | number)[]) {
    this.#answers = answers;
    if (answers.length === 0) this.#release();
  }

  async #fetch(url: string, init?: RequestInit): Promise<Response> {
    const key = new Headers(init?.headers).get("Idempotency-Key");
    if (url.endsWith("/v1/conversion")) {
      this.asked.push(key);
      const answer = this.#answers.shift() ?? at(null);
      if (this.#answers.length === 0) this.#release();
      return typeof answer === "number" ? new Response("{}", { status: answer }) : Response.json({ object: "conversion", ...answer });
    }
    if (/\/v1\/documents(\?|$)|\/complete$/.test(url) && init?.method === "POST") {
      this.uploaded.push(key);
      await this.#released;
    }
    return fetch(url, init);
  }
}

test.concurrent("each new page of a conversion is reported once", async () => {
  const held = new Converting(at(null), at(1), at(1), at(7));
  const pages: [number, number][] = [];
  const document = await held.client.documents.upload(TEXT, { onConversion: (...page) => pages.push(page), idempotencyKey: crypto.randomUUID() });
  expect(document.bytes).toBe(TEXT.length);
  expect(pages[0]).toEqual([1, 12]);
  expect(pages.length).toBeLessThanOrEqual(2); // the upload may end before the last page is known
  expect(held.uploaded.length).toBe(1);
  expect(new Set(held.asked)).toEqual(new Set(held.uploaded));
});

test.concurrent("an upload in parts asks for the progress of its last request", async () => {
  const held = new Converting(at(3), at(3));
  const pages: [number, number][] = [];
  const options = { partSize: 400, filename: "wind.txt", onConversion: (...page: [number, number]) => void pages.push(page) };
  expect((await held.client.documents.upload(TEXT, options)).filename).toBe("wind.txt");
  expect(pages).toEqual([[3, 12]]);
  expect(held.uploaded[0]).toBeTruthy();
  expect(new Set(held.asked)).toEqual(new Set(held.uploaded));
});

test.concurrent.each([404, 429, 500, 503])("an upload goes on when the progress gets a %i", async (status) => {
  const held = new Converting(status, at(2), at(2));
  const pages: number[] = [];
  const document = await held.client.documents.upload(TEXT, { onConversion: (page) => pages.push(page) });
  expect(document.bytes).toBe(TEXT.length);
  expect(pages).toEqual([2]);
});

test.concurrent("the progress ends with the upload, also with one that is refused", async () => {
  const held = new Converting(at(1), at(1));
  const upload = held.client.documents.upload("%PDF-1.7 ...", { onConversion: () => {}, contentType: "application/pdf" });
  await expect(upload).rejects.toThrow(UnprocessableEntityError);
  const before = held.asked.length;
  await held.client.documents.upload(TEXT); // no request of an upload that has ended comes after this one
  await new Converting(at(1), at(2)).client.documents.upload(TEXT, { onConversion: () => {} }); // which asks twice
  expect(held.asked.length).toBe(before);
});

test.concurrent("without a function to call, nothing is asked", async () => {
  const silent = new Converting();
  const slow = new Converting(at(1), at(2)).client.documents.upload(TEXT, { onConversion: () => {} }); // asks twice, so it takes longer
  await Promise.all([silent.client.documents.upload(TEXT), slow]);
  expect(silent.asked).toEqual([]);
});

test.concurrent("an upload in one request and one in parts name the language of the text in pictures", async () => {
  const client = new Everlong({ baseUrl: URL });
  expect((await client.documents.upload(TEXT, { ocrLanguage: "latin" })).bytes).toBe(TEXT.length);
  for (const partSize of [400, 4000])
    await expect(client.documents.upload(TEXT, { ocrLanguage: "klingon", partSize })).rejects.toMatchObject({ param: "ocr_language", status: 422 });
});
