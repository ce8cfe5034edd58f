import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
// @ts-expect-error: a script
import { FILE, render } from "../types.mjs";

test("src/openapi.ts matches ../openapi.json", async () => {
  expect(readFileSync(FILE, "utf8"), "run `npm run types`").toBe(await render());
});
