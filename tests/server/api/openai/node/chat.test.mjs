// Files, uploads and chats through OpenAI's SDK for Node, as it is.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { client, MODEL } from "./talk.mjs";

const how = { model: MODEL, temperature: 0, max_tokens: 12, ignore_eos: true };
const TEXT = "Ω Dinah washed her children's faces: first she held the poor thing down by its ear. ".repeat(20);

test("models", async () => {
  const page = await client.models.list();
  assert.equal(page.data[0].id, MODEL);
  await assert.rejects(client.models.retrieve("gpt-5"), OpenAI.NotFoundError);
});

test("a file grounds a chat", async () => {
  const file = await client.files.create({ file: await toFile(Buffer.from(TEXT), "dinah.txt"), purpose: "user_data" });
  assert.equal((await client.files.waitForProcessing(file.id, { pollInterval: 50 })).status, "processed");
  assert.equal(await (await client.files.content(file.id)).text(), TEXT);
  const content = [
    { type: "file", file: { file_id: file.id } },
    { type: "text", text: "How did Dinah wash her children's faces?" },
  ];
  const asked = { role: "user", content };
  const whole = await client.chat.completions.create({ ...how, messages: [asked] });
  const [passage] = whole.choices[0].message.evidence;
  assert.equal(TEXT.slice(passage.start, passage.end), passage.text);
  assert.ok(whole.usage.prompt_tokens_details.cached_tokens > 100);
  let text = "";
  let usage;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...how, ...options, messages: [asked] })) {
    text += chunk.choices[0]?.delta.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.deepEqual(usage, whole.usage);
  const on = [asked, whole.choices[0].message, { role: "user", content: "Why?" }];
  const more = await client.chat.completions.create({ ...how, messages: on });
  assert.ok(more.usage.prompt_tokens_details.cached_tokens > whole.usage.prompt_tokens - 128);
  assert.equal((await client.files.delete(file.id)).deleted, true);
});

test("an upload in parts", async () => {
  const bytes = Buffer.from(TEXT);
  const fields = { bytes: bytes.length, filename: "dinah.txt", mime_type: "text/plain", purpose: "user_data" };
  const upload = await client.uploads.create(fields);
  const ids = [];
  for (const piece of [bytes.subarray(0, 1), bytes.subarray(1)]) {
    ids.push((await client.uploads.parts.create(upload.id, { data: await toFile(piece, "part") })).id);
  }
  await assert.rejects(client.uploads.complete(upload.id, { part_ids: [ids[1]] }), OpenAI.UnprocessableEntityError);
  const done = await client.uploads.complete(upload.id, { part_ids: ids });
  assert.equal(done.status, "completed");
  assert.equal(await (await client.files.content(done.file.id)).text(), TEXT);
  await assert.rejects(client.uploads.cancel(upload.id), OpenAI.ConflictError);
  await client.files.delete(done.file.id);
});

test("errors are its own", async () => {
  const messages = [{ role: "user", content: "Hi." }];
  const refused = client.chat.completions.create({ ...how, messages, web_search_options: {} });
  await assert.rejects(refused, (error) => {
    assert.ok(error instanceof OpenAI.UnprocessableEntityError);
    assert.deepEqual([error.code, error.param, error.type], ["unknown_parameter", "web_search_options", "invalid_request_error"]);
    return true;
  });
  await assert.rejects(client.files.retrieve("doc_x"), OpenAI.NotFoundError);
  const gone = client.post("/chat/completions", { body: "{", headers: { "content-type": "application/json" } });
  await assert.rejects(gone, OpenAI.APIError);
});
