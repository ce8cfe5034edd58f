// Embeddings, vector stores and file search through OpenAI's SDK for Node, as it is. Run by retrieval/test_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI, { toFile } from "openai";
import { client, MODEL } from "./talk.mjs";

const EMBEDDING = "all-MiniLM-L6-v2";
const PAID = "The physician was paid forty guineas for setting the broken arm.";
const RAIN = "It rained on the roofs for many long days and nights.";
const QUESTION = "How much was the physician paid for the broken arm?";
const upload = async (text, name) =>
  client.files.create({ file: await toFile(Buffer.from(text), name), purpose: "user_data" });
const all = async (pages) => {
  const found = [];
  for await (const each of pages) found.push(each);
  return found;
};

test("embeddings, which the SDK requests as base64", async () => {
  const input = [PAID, RAIN];
  const decoded = await client.embeddings.create({ model: EMBEDDING, input });
  const plain = await client.embeddings.create({ model: EMBEDDING, input, encoding_format: "float" });
  const raw = await client.embeddings.create({ model: EMBEDDING, input, encoding_format: "base64" });
  for (const [n, { embedding }] of decoded.data.entries()) {
    assert.equal(embedding.length, 384);
    assert.ok(plain.data[n].embedding.every((value, at) => Math.abs(value - embedding[at]) < 1e-6));
    assert.equal(Buffer.from(raw.data[n].embedding, "base64").readFloatLE(0), embedding[0]);
  }
  assert.equal((await client.embeddings.create({ model: EMBEDDING, input: PAID, dimensions: 8 })).data[0].embedding.length, 8);
  await assert.rejects(client.embeddings.create({ model: EMBEDDING, input: [[1, 2]] }), OpenAI.UnprocessableEntityError);
});

test("a vector store: files, attributes, search, file search", async () => {
  const bill = await upload(PAID, "bill.txt");
  const rain = await upload(RAIN, "rain.txt");
  const store = await client.vectorStores.create({ name: "Bills", file_ids: [rain.id], metadata: { team: "a" } });
  const added = await client.vectorStores.files.createAndPoll(store.id, { file_id: bill.id, attributes: { year: 1899 } });
  assert.deepEqual([added.id, added.status, { ...added.attributes }], [bill.id, "completed", { year: 1899 }]);
  assert.equal((await client.vectorStores.retrieve(store.id)).file_counts.completed, 2);
  assert.deepEqual((await all(client.vectorStores.files.list(store.id, { limit: 1 }))).map((file) => file.id), [bill.id, rain.id]);

  const [best] = await all(client.vectorStores.search(store.id, { query: QUESTION, max_num_results: 1 }));
  assert.deepEqual([best.file_id, best.filename, best.content[0].text], [bill.id, "bill.txt", PAID]);
  const filters = { type: "ne", key: "year", value: 1899 };
  const others = await all(client.vectorStores.search(store.id, { query: "How long did it rain on the roofs?", filters }));
  assert.deepEqual(others.map((each) => each.filename), ["rain.txt"]);

  const tools = [{ type: "file_search", vector_store_ids: [store.id], max_num_results: 2 }];
  const format = { type: "json_schema", name: "x", schema: { properties: { answer: { const: PAID } }, required: ["answer"], type: "object" } };
  const asked = { model: MODEL, temperature: 0, input: QUESTION, tools, include: ["file_search_call.results"], max_output_tokens: 300, text: { format } };
  const answer = await client.responses.create(asked);
  const [search, message] = answer.output;
  assert.deepEqual([search.type, search.status, search.results[0].file_id], ["file_search_call", "completed", bill.id]);
  const [citation] = message.content[0].annotations;
  assert.deepEqual([citation.type, citation.file_id, citation.filename], ["file_citation", bill.id, "bill.txt"]);
  const stream = client.responses.stream(asked);
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  const searched = ["in_progress", "searching", "completed"].map((state) => `response.file_search_call.${state}`);
  assert.ok(kinds.indexOf(searched[2]) < kinds.indexOf("response.output_text.delta"));
  assert.deepEqual(kinds.filter((kind) => kind.includes("file_search_call")), searched);
  assert.equal((await stream.finalResponse()).output[1].content[0].annotations[0].file_id, bill.id);

  const batch = await client.vectorStores.fileBatches.createAndPoll(store.id, { file_ids: [rain.id] });
  assert.deepEqual([batch.status, batch.file_counts.completed], ["completed", 1]);
  await client.vectorStores.files.delete(rain.id, { vector_store_id: store.id });
  const changed = await client.vectorStores.update(store.id, { name: "Paid" });
  assert.deepEqual([changed.name, changed.file_counts.total], ["Paid", 1]);
  assert.ok((await all(client.vectorStores.list({ limit: 1 }))).some((each) => each.id === store.id));
  assert.equal((await client.vectorStores.delete(store.id)).deleted, true);
  await assert.rejects(client.vectorStores.retrieve(store.id), OpenAI.NotFoundError);
  for (const file of [bill, rain]) await client.files.delete(file.id);
});
