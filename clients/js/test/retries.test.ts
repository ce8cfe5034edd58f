/** Retries and errors, against a fake server with prepared responses. */
import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import {
  APIConnectionError,
  APITimeoutError,
  Everlong,
  InternalServerError,
  RateLimitError,
  SessionBusyError,
  UnexpectedAnswerError,
} from "../src/index.js";
import { parseRetryAfter } from "../src/errors.js";
import { retryDelay } from "../src/retry.js";

type Answer = (request: IncomingMessage, response: ServerResponse) => void;
let server: Server;
let seen: { method: string; url: string; at: number; body: string; key: unknown; name: unknown }[];

/** Makes a client whose requests get `answers` in turn; the last one repeats. */
async function meeting(...answers: Answer[]): Promise<Everlong> {
  seen = [];
  server = createServer(async (request, response) => {
    const answer = answers[Math.min(seen.length, answers.length - 1)]!;
    const { authorization, "idempotency-key": name } = request.headers;
    const entry = { method: request.method!, url: request.url!, at: performance.now(), body: "", key: authorization, name };
    seen.push(entry);
    for await (const data of request) entry.body += data;
    answer(request, response);
  });
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return new Everlong({ baseUrl: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, apiKey: () => "k-ü" });
}

afterEach(() => server.close());

function refusal(status: number, code: string, retryAfter?: string): Answer {
  return (_, response) => {
    response.writeHead(status, retryAfter === undefined ? {} : { "Retry-After": retryAfter });
    response.end(JSON.stringify({ error: { message: `no: ${code}`, type: "t", param: null, code } }));
  };
}
const good: Answer = (_, response) => response.end(JSON.stringify({ id: "doc_1", data: [] }));
const hangUp: Answer = (request) => request.socket.destroy();

test.each([429, 503])("a %i is retried after the delay that the server asks for", async (status) => {
  const client = await meeting(refusal(status, "overloaded", "1"), good);
  await client.documents.upload("text");
  expect(seen.map(({ method, body }) => [method, body])).toEqual([["POST", "text"], ["POST", "text"]]);
  expect(seen[1]!.at - seen[0]!.at).toBeGreaterThan(990);
});

test("retries of a POST have the same idempotency key", async () => {
  const client = await meeting(hangUp, refusal(503, "store_unavailable", "0"), refusal(409, "idempotency_in_progress", "0"), good);
  await client.sessions.create([]);
  expect(seen).toHaveLength(4);
  expect(seen[0]!.name).toMatch(/^[0-9a-f]{32}$/);
  expect(new Set(seen.map(({ name }) => name)).size).toBe(1);
  await client.sessions.create([]);
  expect(seen[4]!.name).not.toBe(seen[0]!.name);
  await client.sessions.fork("ses_1", { idempotencyKey: "mine" });
  expect(seen[5]!.name).toBe("mine");
  await client.sessions.list();
  expect(seen[6]!.name).toBeUndefined();
});

test("a conflict is not retried", async () => {
  const client = await meeting(refusal(409, "session_busy"), good);
  await expect(client.sessions.send("ses_1", "x")).rejects.toThrow(SessionBusyError);
  expect(seen).toHaveLength(1);
});

test("a WebSocket is opened with a ticket instead of the API key", async () => {
  const urls: string[] = [];
  class Socket extends EventTarget {
    constructor(url: URL) {
      super();
      urls.push(String(url));
      setTimeout(() => this.dispatchEvent(new Event("error")));
    }
    close() {}
  }
  const ticket: Answer = (_, response) => response.end(JSON.stringify({ id: "ses_1", messages: 0, ticket: "t/1" }));
  const { baseUrl } = await meeting(ticket);
  const client = new Everlong({ baseUrl, apiKey: "k", outageTimeout: 0, WebSocket: Socket as unknown as typeof WebSocket });
  await expect(client.sessions.connect("ses_1").send("x").next()).rejects.toThrow(APIConnectionError);
  expect(seen.at(-1)).toMatchObject({ method: "POST", url: "/v1/tickets", key: "Bearer k" });
  expect(urls).toEqual([`ws${baseUrl.slice(4)}/v1/sessions/ses_1/stream?ticket=t%2F1`]);
});

test("a retried deletion that gets 404 is no error", async () => {
  const client = await meeting(hangUp, refusal(404, "document_not_found"));
  await client.documents.delete("doc_1");
  await expect(client.documents.delete("doc_1")).rejects.toMatchObject({ status: 404 });
});

test("a response that is cut off is retried", async () => {
  const cut = new ReadableStream({ start: (body) => body.error(new TypeError("terminated")) });
  const answers = [new Response(cut), Response.json({ data: [] }), new Response("<html>")];
  const client = new Everlong({ baseUrl: "http://127.0.0.1:1", fetch: async () => answers.shift()! });
  expect(await client.models()).toEqual([]);
  await expect(client.models()).rejects.toThrow("not JSON");
});

test("retries are limited, and there are none if the server asks for too long a delay", async () => {
  let client = await meeting(refusal(429, "overloaded", "0"));
  await expect(client.models()).rejects.toMatchObject({ code: "overloaded", retryAfter: 0, message: "no: overloaded" });
  expect(seen).toHaveLength(4);
  server.close();
  client = await meeting(refusal(429, "overloaded", "3600"));
  await expect(client.models()).rejects.toThrow(RateLimitError);
  expect(seen).toHaveLength(1);
});

test("an upload from a stream is not retried", async () => {
  const client = await meeting(refusal(429, "overloaded", "0"), good);
  await expect(client.documents.upload(new Blob(["text"]).stream())).rejects.toThrow(RateLimitError);
  expect(seen).toHaveLength(1);
});

test("a response that is not from an everlong server is an error", async () => {
  const client = await meeting((_, response) => response.end("<html>"));
  await expect(client.models()).rejects.toThrow(UnexpectedAnswerError);
  await expect(client.sessions.stream("ses_1", "x").next()).rejects.toThrow(/event stream/);
  server.close();
  const proxy = await meeting((_, response) => response.writeHead(500).end("<html>"));
  await expect(proxy.models()).rejects.toThrow(InternalServerError);
  expect(() => new Everlong({ baseUrl: "ftp://x" })).toThrow(/http/);
});

test("the wait between tries can be aborted", async () => {
  const controller = new AbortController();
  const refuse = refusal(429, "overloaded", "30");
  const client = await meeting((request, response) => {
    response.on("finish", () => setTimeout(() => controller.abort(new Error("enough")), 50));
    refuse(request, response);
  });
  await expect(client.models({ signal: controller.signal })).rejects.toThrow("enough");
  expect(seen).toHaveLength(1);
});

test("delays from Retry-After and from the backoff", () => {
  expect(parseRetryAfter("3")).toBe(3);
  expect(parseRetryAfter("Wed, 21 Oct 2015 07:28:00 GMT", Date.parse("2015-10-21T07:27:50Z"))).toBe(10);
  expect(parseRetryAfter("soon")).toBeNull();
  expect(parseRetryAfter(null)).toBeNull();
  expect([0, 1, 2, 10].map((attempt) => retryDelay(attempt, null, () => 0.5))).toEqual([0.25, 0.5, 1, 8]);
});

test("a response that takes longer than Node's fetch waits is an error of its own, and is not asked for again", async () => {
  let calls = 0;
  const impatient: typeof fetch = async () => {
    calls++;
    throw new TypeError("fetch failed", { cause: Object.assign(new Error("Headers Timeout Error"), { code: "UND_ERR_HEADERS_TIMEOUT" }) });
  };
  const client = new Everlong({ baseUrl: "http://127.0.0.1:9", fetch: impatient });
  await expect(client.sessions.send("ses_1", "Tell me all.")).rejects.toThrow(APITimeoutError);
  await expect(client.sessions.send("ses_1", "Tell me all.")).rejects.toThrow(/stream the answer/);
  expect(calls).toBe(2);
});
