// Completions and batches through OpenAI's SDK for Node, as it is.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { client, MODEL } from "./talk.mjs";

const how = { model: MODEL, temperature: 0, max_tokens: 8, ignore_eos: true };

test("a completion, whole and streamed", async () => {
  const asked = { ...how, prompt: ["Alice was", "The cat"], echo: true, logprobs: 2 };
  const whole = await client.completions.create(asked);
  assert.equal(whole.choices.length, 2);
  const texts = ["", ""];
  for await (const chunk of await client.completions.create({ ...asked, stream: true })) {
    for (const choice of chunk.choices) texts[choice.index] += choice.text;
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
  assert.ok(texts[0].startsWith("Alice was"));
  for (const { logprobs } of whole.choices) {
    assert.equal(logprobs.tokens.length, logprobs.token_logprobs.length);
    assert.equal(logprobs.token_logprobs[0], null);
  }
});

test("a batch answers each line and names the wrong one", async () => {
  const bodies = [{ ...how, prompt: "Alice was" }, { ...how, prompt: "The cat", temperature: 9 }, { ...how, prompt: "A king" }];
  const lines = bodies.map((body, n) => JSON.stringify({ custom_id: `r${n}`, method: "POST", url: "/v1/completions", body }));
  const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "requests.jsonl"), purpose: "batch" });
  const window = { endpoint: "/v1/completions", completion_window: "24h" };
  let batch = await client.batches.create({ ...window, input_file_id: file.id, metadata: { of: "node" } });
  while (["validating", "in_progress", "finalizing"].includes(batch.status)) batch = await client.batches.retrieve(batch.id);
  assert.equal(batch.status, "completed");
  assert.deepEqual(batch.metadata, { of: "node" });
  assert.deepEqual({ ...batch.request_counts }, { total: 3, completed: 2, failed: 1 });
  const read = async (id) => (await (await client.files.content(id)).text()).trim().split("\n").map((line) => JSON.parse(line));
  const answered = await read(batch.output_file_id);
  assert.deepEqual(answered.map((line) => line.custom_id), ["r0", "r2"]);
  const alone = await client.completions.create(bodies[0]);
  assert.deepEqual(answered[0].response.body.choices, alone.choices);
  const [failed] = await read(batch.error_file_id);
  assert.deepEqual([failed.custom_id, failed.response.body.error.param], ["r1", "temperature"]);
  const listed = [];
  for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
  assert.ok(listed.includes(batch.id));
  await assert.rejects(client.batches.cancel(batch.id), OpenAI.ConflictError);
});
