import { afterAll, beforeAll, expect, test } from "vitest";
import { Everlong, NotFoundError, type ResponseEvent, SessionBusyError, StreamError, UnprocessableEntityError } from "../src/index.js";
import { all } from "./all.js";
import { Proxy } from "./proxy.js";

const URL = process.env["EVERLONG_URL"]!;
const client = new Everlong({ baseUrl: URL });
const GREEDY = { temperature: 0, max_tokens: 12, ignore_eos: true };
const ENDLESS = { max_tokens: 1_000_000, ignore_eos: true };
let document: string;
let proxy: Proxy;
let distant: Everlong;

beforeAll(async () => {
  document = (await client.documents.upload("All mimsy were the borogoves. ".repeat(200))).id;
  await client.documents.wait(document);
  proxy = await Proxy.to(URL);
  distant = new Everlong({ baseUrl: proxy.url, outageTimeout: 15 });
});
afterAll(() => proxy.pull());

async function session(): Promise<string> {
  return (await client.sessions.create([document])).id;
}

/** Reads events until the first delta. */
async function speaking(events: AsyncGenerator<ResponseEvent>): Promise<void> {
  for (;;) {
    const { value, done } = await events.next();
    expect(done).toBe(false);
    if (value.type === "response.output_text.delta") return;
  }
}

function textOf(events: ResponseEvent[]): string {
  return events.map((event) => (event.type === "response.output_text.delta" ? event.delta : "")).join("");
}

test("JSON, server-sent events and a WebSocket give the same answer", async () => {
  const answers = [];
  for (const how of ["send", "stream", "connect"] as const) {
    const id = await session();
    if (how === "send") {
      answers.push((await client.sessions.send(id, "Who?", GREEDY)).content);
      continue;
    }
    const conversation = client.sessions.connect(id);
    const events = await all(how === "stream" ? client.sessions.stream(id, "Who?", GREEDY) : conversation.send("Who?", GREEDY));
    expect(events[0]!.type).toBe("response.created");
    const last = events.at(-1)!;
    answers.push(last.type === "response.completed" && last.message.content);
    expect(textOf(events)).toBe(answers.at(-1));
    expect((await client.sessions.messages(id)).map(({ content }) => content)).toEqual(["Who?", answers.at(-1)]);
    conversation.close();
  }
  expect(new Set(answers).size).toBe(1);
});

test("sessions are waited for, listed, forked, looked into and deleted", async () => {
  const other = await client.documents.upload("The slithy toves. ".repeat(200));
  const made = await client.sessions.create([document, other.id]);
  expect((await client.sessions.wait(made.id)).status).toBe("ready");
  await client.sessions.send(made.id, "One.", GREEDY);
  const fork = await client.sessions.fork(made.id);
  expect(fork).toMatchObject({ documents: made.documents, messages: 2 });
  const memory = await client.sessions.memory(fork.id);
  expect(memory.documents.map((extent) => extent.document)).toEqual(made.documents);
  expect(memory.parts.length).toBeGreaterThan(0);
  expect((await client.sessions.list({ limit: 2 })).data.map(({ id }) => id)).toEqual([fork.id, made.id]);
  await client.sessions.delete(fork.id);
  await expect(client.sessions.get(fork.id)).rejects.toThrow(NotFoundError);
  expect((await client.models())[0]!.memory).toBe("rmt");
});

test("passages are found without an answer", async () => {
  const other = await client.documents.upload("The slithy toves. ".repeat(200) + "\n\nThe Jabberwock whiffled through the wood.");
  const options = { limit: 1 };
  const [passage] = await client.search("Jabberwock", { documents: [other.id] }, options);
  expect(passage).toMatchObject({ document: other.id, score: 1, words: 1, similarity: null });
  expect(passage!.text).toContain("Jabberwock");
  const made = await client.sessions.create([other.id]);
  expect(await client.search("Jabberwock", { session: made.id }, options)).toEqual([passage]);
  expect(await client.search("Jabberwock", { documents: [other.id] }, { filters: { first_page: 1 } })).toEqual([]);
  await expect(client.search("Jabberwock", { documents: ["doc_x"] })).rejects.toThrow(NotFoundError);
});

test("a session's title is its first question, or the one that was set", async () => {
  const id = await session();
  expect((await client.sessions.get(id)).title).toBeNull();
  await client.sessions.send(id, "Who  is\nmimsy?", GREEDY);
  expect((await client.sessions.list({ limit: 1 })).data[0]!.title).toBe("Who is mimsy?");
  expect((await client.sessions.rename(id, "Borogoves")).title).toBe("Borogoves");
  expect(await client.sessions.setRecall(id, false)).toMatchObject({ title: "Borogoves", recall: false });
  expect((await client.sessions.setRecall(id, null)).recall).toBe(null);
  await expect(client.sessions.rename(id, " ")).rejects.toMatchObject({ param: "title" });
});

test("errors have the same types over JSON, server-sent events and a WebSocket", async () => {
  const id = await session();
  await expect(client.sessions.send(id, "x", { temperature: -1 })).rejects.toThrow(UnprocessableEntityError);
  await expect(client.sessions.stream(id, "x", { temperature: -1 }).next()).rejects.toMatchObject({ param: "temperature" });
  const conversation = client.sessions.connect(id);
  await expect(conversation.send("x", { temperature: -1 }).next()).rejects.toMatchObject({ param: "temperature" });
  expect(await all(conversation.send("x", GREEDY))).not.toEqual([]);
  await expect(client.sessions.connect("ses_" + "0".repeat(32)).send("x").next()).rejects.toThrow(NotFoundError);
  const events = client.sessions.stream(id, "Talk.", ENDLESS);
  await speaking(events);
  await expect(client.sessions.send(id, "And I?")).rejects.toThrow(SessionBusyError);
  await expect(client.sessions.connect(id).send("And I?").next()).rejects.toThrow(StreamError);
  await events.return(undefined);
});

test("an abandoned or aborted answer leaves the session unchanged; a cancelled one is kept", async () => {
  const id = await session();
  const conversation = client.sessions.connect(id);
  const controller = new AbortController();
  const left = [client.sessions.stream(id, "Talk.", ENDLESS), conversation.send("Talk.", ENDLESS)];
  for (const events of left) {
    await speaking(events);
    await events.return(undefined);
    await expect.poll(async () => (await fetch(`${URL}/metrics`)).text(), { timeout: 60_000 }).toContain("everlong_answering 0.0");
  }
  for (const events of [
    client.sessions.stream(id, "Talk.", ENDLESS, { signal: controller.signal }),
    conversation.send("Talk.", ENDLESS, { signal: controller.signal }),
  ]) {
    if (!controller.signal.aborted) await speaking(events);
    controller.abort(new Error("enough"));
    await expect(all(events)).rejects.toThrow("enough");
  }
  const cancelled = conversation.send("Talk.", ENDLESS); // at once, while the server may still be cancelling the aborted answers
  await speaking(cancelled);
  conversation.cancel();
  const last = (await all(cancelled)).at(-1)!;
  expect(last).toMatchObject({ type: "response.completed", message: { finish_reason: "cancelled" } });
  expect(await client.sessions.messages(id)).toHaveLength(2);
  const early = conversation.send("Talk.", ENDLESS);
  const first = early.next();
  conversation.cancel(); // before the message is sent
  expect([await first, ...(await all(early))].length).toBeGreaterThan(0);
  expect((await client.sessions.messages(id)).length).toBeLessThanOrEqual(4);
  conversation.close();
});

test("closing a conversation ends its answer, which is not requested again", async () => {
  const id = await session();
  const through = distant.sessions.connect(id);
  const events = through.send("Talk.", ENDLESS);
  await speaking(events);
  through.close();
  await expect(all(events)).rejects.toMatchObject({ name: "StreamError", code: "closed" });
  expect(proxy.requests(`GET /v1/sessions/${id}/stream`)).toBe(1);
  await expect.poll(async () => (await client.sessions.get(id)).answering, { timeout: 60_000 }).toBe(false);
  expect(await client.sessions.messages(id)).toEqual([]);
  expect((await all(through.send("And now?", GREEDY))).at(-1)!.type).toBe("response.completed"); // it connects again
  through.close();
});

test("an answer that is cut off is requested again, once", async () => {
  const id = await session();
  const conversation = distant.sessions.connect(id);
  const lost: (string | null)[] = [];
  conversation.onlost = (error) => lost.push(error && error.name);
  const events = conversation.send("Who?", { ...ENDLESS, temperature: 0 }); // cannot be complete before the connection is cut
  await speaking(events);
  await proxy.plug(await proxy.pull());
  const rest: ResponseEvent[] = [];
  for await (const event of events) {
    const again = rest.some(({ type }) => type === "response.created");
    if (again && event.type === "response.output_text.delta") conversation.cancel();
    rest.push(event);
  }
  expect(rest.filter(({ type }) => type === "response.created")).toHaveLength(1);
  const last = rest.at(-1)!;
  const answer = last.type === "response.completed" ? last.message : null;
  expect(answer).toMatchObject({ finish_reason: "cancelled" });
  expect(textOf(rest.slice(rest.findIndex(({ type }) => type === "response.created")))).toBe(answer!.content);
  const whole = await client.sessions.send(await session(), "Who?", { ...GREEDY, max_tokens: answer!.usage!.completion_tokens });
  // A cancelled answer leaves out a character whose last bytes are missing; one that reached its token limit shows them as U+FFFD.
  const complete = (text: string) => text.replace(/\ufffd+$/, "");
  expect(complete(whole.content)).toBe(complete(answer!.content));
  expect((await client.sessions.messages(id)).map(({ content }) => content)).toEqual(["Who?", answer!.content]);
  expect(lost).toEqual(["StreamError", null]);
  // The conversation also survives a connection that is lost between two messages.
  await proxy.plug(await proxy.pull());
  expect((await all(conversation.send("And?", GREEDY))).at(-1)!.type).toBe("response.completed");
  expect(await client.sessions.messages(id)).toHaveLength(4);
  conversation.close();
});

test("an answer that was complete when the connection was lost is not requested again", async () => {
  const id = await session();
  const conversation = distant.sessions.connect(id);
  const events = conversation.send("Who?", { ...GREEDY, max_tokens: 40 });
  expect((await events.next()).value.type).toBe("response.created");
  // No further event is read until the session has the answer.
  await expect.poll(async () => (await client.sessions.messages(id)).length, { timeout: 60_000 }).toBe(2);
  const asked = proxy.requests("GET /v1/sessions/" + id + "/stream");
  const rest = all(events);
  await proxy.plug(await proxy.pull());
  expect((await rest).at(-1)).toMatchObject({ type: "response.completed" });
  expect(await client.sessions.messages(id)).toHaveLength(2);
  expect(proxy.requests("GET /v1/sessions/" + id + "/stream")).toBe(asked);
  conversation.close();
});

test("an answer that the server finishes without its client is waited for, and cancelled on demand", async () => {
  const id = await session();
  const conversation = distant.sessions.connect(id);
  for (const sampling of [{ ...GREEDY, max_tokens: 1500 }, ENDLESS]) {
    const events = conversation.send("Who?", { ...sampling, on_disconnect: "finish" });
    await speaking(events);
    const before = (await client.sessions.running(id))?.id;
    const asked = proxy.requests(`GET /v1/sessions/${id}/stream`);
    await proxy.plug(await proxy.pull());
    const rest = all(events);
    if (sampling === ENDLESS) {
      await expect.poll(async () => (await client.sessions.running(id))?.text, { timeout: 60_000 }).toBeTruthy();
      conversation.cancel();
    }
    const last = (await rest).at(-1)!;
    const answer = last.type === "response.completed" ? last.message : null;
    expect(answer).toMatchObject({ finish_reason: sampling === ENDLESS ? "cancelled" : "length" });
    if (before) expect(answer!.id).toBe(before);
    expect(proxy.requests(`GET /v1/sessions/${id}/stream`)).toBe(asked);
  }
  expect(await client.sessions.messages(id)).toHaveLength(4);
  expect(await client.sessions.running(id)).toBeNull();
  conversation.close();
});

test("an error is thrown if the server is unreachable for longer than the outage timeout", async () => {
  const proxy = await Proxy.to(URL);
  const conversation = new Everlong({ baseUrl: proxy.url, outageTimeout: 0, retries: 0 }).sessions.connect(await session());
  const events = conversation.send("Talk.", ENDLESS);
  await speaking(events);
  await proxy.pull();
  await expect(all(events)).rejects.toThrow(/lost/);
});
