// Ask about a file, one question a line, over one WebSocket: node conversation.mjs FILE
import { spawnSync } from "node:child_process";
import { openAsBlob } from "node:fs";
import { basename } from "node:path";
import { createInterface } from "node:readline/promises";
import { Everlong } from "../clients/js/dist/index.js";

const [path] = process.argv.slice(2);
if (!path) {
  console.error("node conversation.mjs FILE");
  process.exit(1);
}
if (!globalThis.WebSocket) {
  // Node 20 has one only with this flag.
  const { status } = spawnSync(process.execPath, ["--experimental-websocket", ...process.argv.slice(1)], { stdio: "inherit" });
  process.exit(status ?? 1);
}
const client = new Everlong({ baseUrl: process.env.EVERLONG_URL ?? "http://127.0.0.1:8080", apiKey: process.env.EVERLONG_API_KEY });
const { id } = await client.documents.upload(await openAsBlob(path), { filename: basename(path) });
const document = await client.documents.wait(id);
console.log(`${document.tokens} tokens read`);

const session = await client.sessions.create([id]);
const conversation = client.sessions.connect(session.id); // reconnects by itself, and fetches what it missed
conversation.onlost = (error) => console.error(error ? "lost the connection; reconnecting" : "reconnected");
const lines = createInterface({ input: process.stdin, output: process.stdin.isTTY ? process.stdout : undefined, prompt: "> " });
lines.prompt();
for await (const question of lines) {
  if (question.trim()) {
    for await (const event of conversation.send(question)) {
      if (event.type === "response.output_text.delta") process.stdout.write(event.delta);
    }
    process.stdout.write("\n");
  }
  lines.prompt();
}
conversation.close();
