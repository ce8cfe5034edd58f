// Run `node types.mjs` to generate src/openapi.ts from ../openapi.json. It has the schemas of the endpoints in `OURS`.
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import openapiTS, { astToString } from "openapi-typescript";

const OURS = /^\/v1\/(documents|formats|sessions|models|search|uploads)(\/|$)/;
export const FILE = fileURLToPath(new URL("src/openapi.ts", import.meta.url));

/** Returns the current content for src/openapi.ts. */
export async function render() {
  const contract = JSON.parse(readFileSync(new URL("../openapi.json", import.meta.url), "utf8"));
  const all = contract.components.schemas;
  const found = new Set();
  const visit = (part) => {
    for (const [, name] of JSON.stringify(part).matchAll(/"#\/components\/schemas\/(\w+)"/g)) {
      if (!found.has(name)) {
        found.add(name);
        visit(all[name]);
      }
    }
  };
  for (const [path, operations] of Object.entries(contract.paths)) if (OURS.test(path)) visit(operations);
  found.delete("HTTPValidationError"); // of FastAPI; this server never sends it
  const untitled = (key, value) => (key === "title" && typeof value === "string" ? undefined : value);
  const schemas = Object.fromEntries([...found].sort().map((name) => [name, JSON.parse(JSON.stringify(all[name]), untitled)]));
  const ast = await openapiTS({ ...contract, paths: {}, components: { schemas } });
  const [, text] = astToString(ast).split(/(?=export interface components)/);
  const [kept] = text.split(/(?=export type \$defs|export type operations)/);
  return `// Made by \`npm run types\` from ../openapi.json.\n\n${kept.trim()}\n`;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) writeFileSync(FILE, await render());
