// Responses through OpenAI's SDK for Node, as it is: JSON, stream, WebSocket.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { ResponsesWS } from "openai/resources/responses/ws";
import { client, MODEL } from "./talk.mjs";

const how = { model: MODEL, temperature: 0, max_output_tokens: 12, ignore_eos: true };
const END = ["response.completed", "response.incomplete", "response.failed"];

test("a chain, forked and deleted", async () => {
  const root = await client.responses.create({ ...how, input: "Tell me of it. ".repeat(40) });
  assert.equal(root.status, "incomplete");
  const next = { ...how, previous_response_id: root.id };
  const [one, other] = [await client.responses.create({ ...next, input: "And?" }), await client.responses.create({ ...next, input: "And?" })];
  assert.notEqual(one.id, other.id);
  assert.equal(one.output_text, other.output_text);
  assert.ok(one.usage.input_tokens_details.cached_tokens > 0);
  assert.equal((await client.responses.retrieve(one.id)).output_text, one.output_text);
  const items = await client.responses.inputItems.list(root.id);
  assert.equal(items.data[0].content[0].text, "Tell me of it. ".repeat(40));
  await client.responses.delete(root.id);
  await assert.rejects(client.responses.create({ ...next, input: "And?" }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "previous_response_not_found");
    return true;
  });
});

test("its own accumulation of a stream", async () => {
  const whole = await client.responses.create({ ...how, input: "Speak." });
  const stream = client.responses.stream({ ...how, input: "Speak." });
  const kinds = [];
  for await (const event of stream) kinds.push(event.type);
  assert.equal(kinds[0], "response.created");
  assert.equal(kinds.at(-1), "response.incomplete");
  const final = await stream.finalResponse();
  assert.equal(final.output_text, whole.output_text);
});

test("in the background", async () => {
  let response = await client.responses.create({ ...how, input: "Speak.", background: true });
  while (["queued", "in_progress"].includes(response.status)) response = await client.responses.retrieve(response.id);
  assert.equal(response.status, "incomplete");
  const long = await client.responses.create({ ...how, input: "Speak.", background: true, max_output_tokens: 1_000_000 });
  assert.equal((await client.responses.cancel(long.id)).status, "cancelled");
  await assert.rejects(client.responses.create({ ...how, input: "?", previous_response_id: long.id }), OpenAI.ConflictError);
});

test("JSON of a schema", async () => {
  const schema = { type: "object", properties: { yes: { type: "boolean" } }, required: ["yes"], additionalProperties: false };
  const text = { format: { type: "json_schema", name: "verdict", strict: true, schema } };
  const response = await client.responses.parse({ ...how, input: "Who?", text, max_output_tokens: 60 });
  assert.equal(typeof response.output_parsed.yes, "boolean");
});

test("a WebSocket", async () => {
  const whole = await client.responses.create({ model: MODEL, temperature: 0, max_output_tokens: 12, input: "Speak." });
  const socket = new ResponsesWS(client);
  const events = [];
  const failed = [];
  await new Promise((resolve, reject) => {
    socket.on("error", (error) => {
      failed.push(error);
      if (failed.length === 1) socket.send({ type: "response.create", model: MODEL, temperature: 0, max_output_tokens: 12, input: "Speak." });
      else reject(error);
    });
    socket.on("event", (event) => {
      events.push(event);
      if (END.includes(event.type)) resolve();
    });
    socket.send({ type: "response.create", model: "gpt-5", input: "Speak." });
  });
  socket.close();
  assert.equal(failed.length, 1, "an error leaves it open");
  assert.equal(events.at(-1).response.output[0].content[0].text, whole.output_text);
});
