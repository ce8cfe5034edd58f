// Tools in chats and responses through OpenAI's SDK for Node, as it is. Run by tools/test_node.py.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";
import { client, MODEL } from "./talk.mjs";

const UNITS = ["C", "F"];
const parameters = {
  type: "object",
  properties: { city: { type: "string", maxLength: 12 }, unit: { enum: UNITS } },
  required: ["city", "unit"],
  additionalProperties: false,
};
const weather = { name: "get_weather", description: "Tells the weather.", parameters, strict: true };
const question = "How is the weather in Paris?";
const several = { temperature: 1, seed: 1 }; // the tiny model then makes three calls
const chat = {
  model: MODEL, messages: [{ role: "user", content: question }], tools: [{ type: "function", function: weather }],
  tool_choice: "required", max_tokens: 400,
};
const response = {
  model: MODEL, input: question, tools: [{ type: "function", ...weather }], tool_choice: "required", max_output_tokens: 400,
};
const check = (name, text) => {
  const given = JSON.parse(text);
  assert.equal(name, "get_weather");
  assert.deepEqual(Object.keys(given), ["city", "unit"]);
  assert.ok(UNITS.includes(given.unit));
  return given;
};

test("parallel calls of a chat arrive in pieces, and the SDK joins them", async () => {
  const whole = await client.chat.completions.create({ ...chat, ...several });
  const calls = whole.choices[0].message.tool_calls;
  assert.ok(calls.length > 1);
  const stream = client.chat.completions.stream({ ...chat, ...several });
  let pieces = 0;
  stream.on("tool_calls.function.arguments.delta", () => (pieces += 1));
  const joined = (await stream.finalChatCompletion()).choices[0].message.tool_calls;
  assert.ok(pieces > calls.length);
  assert.deepEqual(joined.map((call) => call.function.arguments), calls.map((call) => call.function.arguments));
  for (const call of joined) check(call.function.name, call.function.arguments);
});

test("the SDK's runner calls a function and sends its result", async () => {
  const asked = [];
  const run = (given) => {
    asked.push(given);
    return `12 degrees in ${given.city}`;
  };
  const tool = { type: "function", function: { ...weather, function: run, parse: JSON.parse } };
  const runner = client.chat.completions.runTools({
    ...chat, max_tokens: 200, temperature: 0, tools: [tool], parallel_tool_calls: false,
    tool_choice: { type: "function", function: { name: "get_weather" } },
  });
  await runner.done();
  assert.equal(asked.length, 1);
  const result = runner.messages.find((message) => message.role === "tool");
  assert.equal(result.content, `12 degrees in ${asked[0].city}`);
});

test("calls of a response, streamed and answered", async () => {
  const whole = await client.responses.create({ ...response, ...several });
  const calls = whole.output.filter((item) => item.type === "function_call");
  assert.ok(calls.length > 1);
  const stream = client.responses.stream({ ...response, ...several });
  const pieces = {};
  for await (const event of stream) {
    if (event.type === "response.function_call_arguments.delta") pieces[event.output_index] = (pieces[event.output_index] ?? "") + event.delta;
    if (event.type === "response.function_call_arguments.done") assert.equal(pieces[event.output_index], event.arguments);
  }
  const final = (await stream.finalResponse()).output.filter((item) => item.type === "function_call");
  assert.deepEqual(final.map((call) => call.arguments), calls.map((call) => call.arguments));
  for (const call of final) check(call.name, call.arguments);

  const outputs = calls.map((call) => ({ type: "function_call_output", call_id: call.call_id, output: "12 degrees" }));
  const next = { ...response, previous_response_id: whole.id, tool_choice: "none", max_output_tokens: 16 };
  const answer = await client.responses.create({ ...next, input: outputs });
  assert.deepEqual(answer.output.map((item) => item.type), ["message"]);
  await assert.rejects(client.responses.create({ ...next, input: outputs.slice(1) }), OpenAI.UnprocessableEntityError);
});
