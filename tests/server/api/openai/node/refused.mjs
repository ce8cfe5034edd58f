// What a server that asks for keys and counts requests refuses, as the SDK's own exceptions. Run by test_refused.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { MODEL } from "./talk.mjs";

const sdk = (apiKey) => new OpenAI({ baseURL: process.env.OPENAI_BASE_URL, apiKey, maxRetries: 0 });
const asks = {
  models: (client) => client.models.list(),
  chat: (client) => client.chat.completions.create({ model: MODEL, messages: [{ role: "user", content: "Hi." }], max_tokens: 1 }),
  responses: (client) => client.responses.create({ model: MODEL, input: "Hi.", max_output_tokens: 16 }),
  files: async (client) => client.files.create({ file: await toFile(Buffer.from("Once."), "a.txt"), purpose: "user_data" }),
  uploads: (client) => client.uploads.create({ bytes: 1, filename: "a.txt", mime_type: "text/plain", purpose: "user_data" }),
};
const { KEY, READ, COUNTED } = process.env;

for (const [name, ask] of Object.entries(asks)) {
  test(`${name} without a key that is good`, async () => {
    await assert.rejects(ask(sdk("evl_wrong")), OpenAI.AuthenticationError);
    await assert.rejects(ask(sdk(`${KEY.slice(0, -1)}!`)), OpenAI.AuthenticationError);
  });
  if (name !== "models")
    test(`${name} with a key that may read`, async () => {
      await assert.rejects(ask(sdk(READ)), OpenAI.PermissionDeniedError);
    });
  test(`${name} beyond the limit`, async () => {
    await assert.rejects(ask(sdk(COUNTED)), (error) => {
      assert.ok(error instanceof OpenAI.RateLimitError);
      assert.equal(error.code, "requests_limit");
      assert.ok(Number(error.headers.get("retry-after")) >= 1);
      return true;
    });
  });
}

test("what is not there, not now, or cannot be", async () => {
  const client = sdk(KEY);
  await assert.rejects(client.files.retrieve("doc_x"), OpenAI.NotFoundError);
  await assert.rejects(client.responses.retrieve("resp_x"), OpenAI.NotFoundError);
  const upload = await asks.uploads(client);
  await client.uploads.cancel(upload.id);
  await assert.rejects(client.uploads.complete(upload.id, { part_ids: ["part_x"] }), OpenAI.ConflictError);
  await assert.rejects(client.chat.completions.create({ model: MODEL, messages: [] }), OpenAI.UnprocessableEntityError);
});
