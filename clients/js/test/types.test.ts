import { readFileSync } from "node:fs";
import { expect, test } from "vitest";
// @ts-expect-error: a script
import { FILE, render } from "../types.mjs";

test("the types are those of ../openapi.json", async () => {
  expect(readFileSync(FILE, "utf8"), "run `npm run types`").toBe(await render());
});
