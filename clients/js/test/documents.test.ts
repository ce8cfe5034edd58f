import { createHash } from "node:crypto";
import { expect, test } from "vitest";
import { APIConnectionError, Everlong, NotFoundError, ReadingFailedError, UnprocessableEntityError, UnsupportedMediaTypeError, type UploadState } from "../src/index.js";
import { all } from "./all.js";
import { Proxy } from "./proxy.js";

const URL = process.env["EVERLONG_URL"]!;
const client = new Everlong({ baseUrl: URL });
const TEXT = "The wind in Größenwahn was 鯨 cold. ".repeat(40);
const BYTES = new TextEncoder().encode(TEXT);

async function* pieces(): AsyncGenerator<string | Uint8Array> {
  yield TEXT.slice(0, 100);
  yield new TextEncoder().encode(TEXT.slice(100));
}

const SOURCES = {
  string: () => TEXT,
  bytes: () => BYTES,
  Blob: () => new Blob([TEXT], { type: "text/markdown" }),
  File: () => new File([TEXT], "wind.txt", { type: "text/plain" }),
  ReadableStream: () => new Blob([TEXT]).stream(),
  generator: pieces,
};

test.each(Object.entries(SOURCES))("a %s is uploaded, with and without progress, and read the same", async (kind, source) => {
  const seen: [number, number | null][] = [];
  const first = await client.documents.upload(source(), { onProgress: (sent, total) => seen.push([sent, total]) });
  const second = await client.documents.upload(source());
  expect(first.filename).toBe(kind === "File" ? "wind.txt" : null);
  expect(first.bytes).toBe(BYTES.length);
  const total = ["ReadableStream", "generator"].includes(kind) ? null : BYTES.length;
  expect(seen[0]).toEqual([0, total]);
  expect(seen.at(-1)).toEqual([BYTES.length, total]);
  const read = await Promise.all([first, second].map(({ id }) => client.documents.wait(id)));
  expect(read[0]!.state_digest).toBe(read[1]!.state_digest);
  expect(read[0]!.status).toBe("ready");
});

test("the server lists the formats that it accepts", async () => {
  const { data, max_bytes } = await client.documents.formats();
  expect(data[0]).toMatchObject({ id: "text" });
  expect(data[0]!.media_types).toContain("text/*");
  expect(max_bytes).toBeGreaterThan(1e9);
});

test("reading is followed until it is done", async () => {
  const { id } = await client.documents.upload(TEXT.repeat(10), { filename: "a name: ä & b" });
  const seen: number[] = [];
  const done = await client.documents.wait(id, { onProgress: (document) => seen.push(document.tokens) });
  expect(done.filename).toBe("a name: ä & b");
  expect(done.progress).toBe(1);
  expect(seen.at(-1)).toBe(done.tokens);
  expect(seen).toEqual([...seen].sort((a, b) => a - b));
});

test("following survives a lost connection, but not with an outage timeout of 0", async () => {
  const proxy = await Proxy.to(URL);
  const long = await client.documents.upload(TEXT.repeat(10_000)); // takes minutes to read
  const { id } = await client.documents.upload(TEXT.repeat(20));
  const follow = new Everlong({ baseUrl: proxy.url }).documents.follow(id);
  const impatient = new Everlong({ baseUrl: proxy.url, outageTimeout: 0, retries: 0 }).documents.follow(long.id);
  await Promise.all([follow.next(), impatient.next()]);
  const port = await proxy.pull();
  await expect(all(impatient)).rejects.toThrow(/cut off|no response/);
  await client.documents.delete(long.id);
  await proxy.plug(port);
  const rest = await all(follow);
  expect(rest.at(-1)!.status).toBe("ready");
  await proxy.pull();
});

test("adjacent parts of the text join without a gap", async () => {
  const { id, bytes } = await client.documents.upload(TEXT);
  let text = "";
  for (let at = 0; at < bytes; at += 11) text += (await client.documents.text(id, { startByte: at, endByte: at + 11 })).text;
  expect(text).toBe(TEXT);
  await expect(client.documents.text(id, { startByte: bytes + 1 })).rejects.toMatchObject({ param: "start_byte", status: 422 });
});

test("lists have pages, and what is deleted is gone", async () => {
  const ids = [];
  for (let n = 0; n < 3; n++) ids.unshift((await client.documents.upload(`text ${n}`)).id);
  const page = await client.documents.list({ limit: 2 });
  expect(page.data.map(({ id }) => id)).toEqual(ids.slice(0, 2));
  expect(page.has_more).toBe(true);
  expect((await client.documents.list({ limit: 1, after: page.data[1]!.id })).data[0]!.id).toBe(ids[2]);
  await client.documents.delete(ids[0]!);
  await expect(client.documents.get(ids[0]!)).rejects.toThrow(NotFoundError);
  await expect(client.documents.wait(ids[0]!)).rejects.toThrow(NotFoundError);
});

test("files that cannot be read are refused", async () => {
  const video = new File(["\x1aE"], "a.mp4", { type: "video/mp4" });
  await expect(client.documents.upload(video)).rejects.toThrow(UnsupportedMediaTypeError);
  await expect(client.documents.upload("")).rejects.toMatchObject({ code: "empty_document" });
  await expect(client.documents.upload("%PDF-1.7 ...")).rejects.toThrow(UnprocessableEntityError);
  expect(() => client.documents.get("")).toThrow(/must not be empty/);
  expect(new ReadingFailedError("x", "doc_1", null).name).toBe("ReadingFailedError");
});

/** Returns a tar archive of files. */
function tar(files: Record<string, string>): Blob {
  const parts: Uint8Array<ArrayBuffer>[] = [];
  for (const [name, text] of Object.entries(files)) {
    const content = new TextEncoder().encode(text);
    const header = new Uint8Array(512);
    const put = (at: number, field: string) => header.set(new TextEncoder().encode(field), at);
    put(0, name);
    put(100, "0000644\0");
    put(124, `${content.length.toString(8).padStart(11, "0")}\0`);
    put(136, "00000000000\0");
    put(148, "        "); // the checksum, while it is computed
    put(156, "0");
    put(257, "ustar\u000000");
    put(148, `${header.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0")}\0 `);
    parts.push(header, content, new Uint8Array((512 - (content.length % 512)) % 512));
  }
  return new Blob([...parts, new Uint8Array(1024)]);
}

test("each file of an archive becomes a document, in one request however large it is", async () => {
  const proxy = await Proxy.to(URL);
  const through = new Everlong({ baseUrl: proxy.url });
  const seen: number[] = [];
  const archive = tar({ "notes/one.txt": TEXT, "film.mp4": "\0\0\0\x18ftypmp42", "two.txt": "Two." });
  // A part size has no effect here.
  const options = { filename: "all.tar", partSize: 400, onProgress: (sent: number) => void seen.push(sent) };
  const { data, notes } = await through.documents.uploadArchive(archive, options);
  expect(data.map(({ filename, bytes }) => [filename, bytes])).toEqual([["one.txt", BYTES.length], ["two.txt", 4]]);
  expect(notes.map(({ part }) => part)).toEqual(["film.mp4"]);
  expect([seen[0], seen.at(-1)]).toEqual([0, archive.size]);
  expect(proxy.requests("POST /v1/documents/archive")).toBe(1);
  expect(proxy.requests("POST /v1/uploads")).toBe(0);
  await expect(client.documents.uploadArchive("no archive")).rejects.toThrow(UnsupportedMediaTypeError);
  await proxy.pull();
});

test("a large file is sent in parts, and only a lost part is sent again", async () => {
  const proxy = await Proxy.to(URL);
  let port = 0;
  const lost: typeof fetch = async (url, init) => {
    const third = String(url).endsWith("/parts") && proxy.requests("POST /v1/uploads/") === 2;
    if (third && port === 0) port = await proxy.pull();
    else if (port > 0) await proxy.plug(port).then(() => (port = -1));
    return fetch(url, init);
  };
  const seen: number[] = [];
  const through = new Everlong({ baseUrl: proxy.url, fetch: lost });
  const options = { partSize: 400, filename: "wind.txt", onProgress: (sent: number, total: number | null) => seen.push(sent) && expect(total).toBe(BYTES.length) };
  const document = await through.documents.upload(TEXT, options);
  const parts = Math.ceil(BYTES.length / 400);
  expect(parts).toBeGreaterThan(3);
  expect(proxy.requests("POST /v1/uploads/")).toBe(parts + 1); // plus the completion; the lost request never reached the proxy
  expect(proxy.requests("POST /v1/documents")).toBe(0);
  expect(seen).toEqual([...seen].sort((a, b) => a - b));
  expect([seen[0], seen.at(-1)]).toEqual([0, BYTES.length]);
  expect(document).toMatchObject({ filename: "wind.txt", bytes: BYTES.length });
  const whole = await client.documents.upload(TEXT);
  const [one, other] = await Promise.all([document, whole].map(({ id }) => client.documents.wait(id)));
  expect(one!.state_digest).toBe(other!.state_digest);
  await proxy.pull();
});

test("an interrupted upload is resumed; an expired one starts again", async () => {
  const [proxy, state]: [Proxy, UploadState] = [await Proxy.to(URL), {}];
  const through = new Everlong({ baseUrl: proxy.url, retries: 0 });
  const port = proxy.port;
  const onProgress = (sent: number) => void (sent === 1200 && proxy.pull());
  await expect(through.documents.upload(TEXT, { partSize: 400, state, onProgress })).rejects.toThrow(APIConnectionError);
  const kept: UploadState = JSON.parse(JSON.stringify(state));
  expect(kept.parts!.length).toBe(3);
  await proxy.plug(port);
  const before = proxy.requests("POST /v1/uploads/");
  const document = await through.documents.upload(TEXT, { state: kept, partSize: 400 });
  expect(document.bytes).toBe(BYTES.length);
  expect(proxy.requests("POST /v1/uploads/") - before).toBe(Math.ceil(BYTES.length / 400) - 3 + 1);
  const expired = { ...state, upload: "upload_0123456789abcdef0123456789abcdef" };
  expect((await through.documents.upload(TEXT, { state: expired, partSize: 400 })).bytes).toBe(BYTES.length);
  expect(expired.parts!.length).toBe(Math.ceil(BYTES.length / 400));
  await proxy.pull();
});

test("an upload can be aborted", async () => {
  const controller = new AbortController();
  async function* endless() {
    for (let n = 0; ; n++) {
      if (n === 3) controller.abort(new Error("enough"));
      yield createHash("sha256").update(String(n)).digest("hex");
    }
  }
  const before = (await client.documents.list({ limit: 1 })).data[0]!.id;
  await expect(client.documents.upload(endless(), { signal: controller.signal })).rejects.toThrow("enough");
  expect((await client.documents.list({ limit: 1 })).data[0]!.id).toBe(before);
});
