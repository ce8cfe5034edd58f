/** What no healthy server does: its answers are made here. */
import { type IncomingMessage, type Server, type ServerResponse, createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, expect, test } from "vitest";
import {
  APIConnectionError,
  Everlong,
  InternalServerError,
  RateLimitError,
  ServiceUnavailableError,
  UnexpectedAnswerError,
} from "../src/index.js";
import { parseRetryAfter } from "../src/errors.js";
import { delay } from "../src/patience.js";

type Answer = (request: IncomingMessage, response: ServerResponse) => void;
let server: Server;
let seen: { method: string; at: number; body: string; key: string | undefined }[];

/** A client whose requests get `answers`, one after the other, the last again and again. */
async function meeting(...answers: Answer[]): Promise<Everlong> {
  seen = [];
  server = createServer(async (request, response) => {
    const answer = answers[Math.min(seen.length, answers.length - 1)]!;
    const entry = { method: request.method!, at: performance.now(), body: "", key: request.headers.authorization };
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

test.each([429, 503])("a %i is tried again after the time that the server asks for, whatever was asked", async (status) => {
  const client = await meeting(refusal(status, "overloaded", "1"), good);
  await client.documents.upload("text");
  expect(seen.map(({ method, body }) => [method, body])).toEqual([["POST", "text"], ["POST", "text"]]);
  expect(seen[1]!.at - seen[0]!.at).toBeGreaterThan(990);
});

test("what may have been done is not done twice, what changes nothing is", async () => {
  let client = await meeting(hangUp, good);
  await expect(client.sessions.create([])).rejects.toThrow(APIConnectionError);
  expect(seen).toHaveLength(1);
  await client.sessions.list();
  server.close();
  client = await meeting(hangUp, good);
  await client.sessions.list();
  expect(seen).toHaveLength(2);
  server.close();
  client = await meeting(refusal(503, "store_unavailable", "0"), good);
  await expect(client.sessions.send("ses_1", "x")).rejects.toThrow(ServiceUnavailableError);
  expect(seen).toHaveLength(1);
});

test("a deletion whose answer was lost is no error", async () => {
  const client = await meeting(hangUp, refusal(404, "document_not_found"));
  await client.documents.delete("doc_1");
  await expect(client.documents.delete("doc_1")).rejects.toMatchObject({ status: 404 });
});

test("it ends after some tries, and at once if the wait is too long", async () => {
  let client = await meeting(refusal(429, "overloaded", "0"));
  await expect(client.models()).rejects.toMatchObject({ code: "overloaded", retryAfter: 0, message: "no: overloaded" });
  expect(seen).toHaveLength(5);
  server.close();
  client = await meeting(refusal(429, "overloaded", "3600"));
  await expect(client.models()).rejects.toThrow(RateLimitError);
  expect(seen).toHaveLength(1);
});

test("a stream that was taken once is not sent again", async () => {
  const client = await meeting(refusal(429, "overloaded", "0"), good);
  await expect(client.documents.upload(new Blob(["text"]).stream())).rejects.toThrow(RateLimitError);
  expect(seen).toHaveLength(1);
});

test("what is no everlong server is named", async () => {
  const client = await meeting((_, response) => response.end("<html>"));
  await expect(client.models()).rejects.toThrow(UnexpectedAnswerError);
  await expect(client.sessions.stream("ses_1", "x").next()).rejects.toThrow(/event stream/);
  server.close();
  const proxy = await meeting((_, response) => response.writeHead(500).end("<html>"));
  await expect(proxy.models()).rejects.toThrow(InternalServerError);
  expect(() => new Everlong({ baseUrl: "ftp://x" })).toThrow(/http/);
});

test("waiting between tries can be aborted, and the key is sent", async () => {
  const client = await meeting(refusal(429, "overloaded", "30"));
  await expect(client.models({ signal: AbortSignal.timeout(50) })).rejects.toThrow(/timeout/);
  expect(seen).toHaveLength(1);
});

test("the waits", () => {
  expect(parseRetryAfter("3")).toBe(3);
  expect(parseRetryAfter("Wed, 21 Oct 2015 07:28:00 GMT", Date.parse("2015-10-21T07:27:50Z"))).toBe(10);
  expect(parseRetryAfter("soon")).toBeNull();
  expect(parseRetryAfter(null)).toBeNull();
  expect([0, 1, 2, 10].map((attempt) => delay(attempt, null, () => 0.5))).toEqual([0.25, 0.5, 1, 8]);
});
