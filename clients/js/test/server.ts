/** The server that the tests meet: the one at EVERLONG_URL, or one with a tiny model of their own. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

const ROOT = fileURLToPath(new URL("../../..", import.meta.url));

export default async function setup(): Promise<() => Promise<void>> {
  let child: ChildProcess | null = null;
  let url = process.env["EVERLONG_URL"];
  if (!url) {
    const python = process.env["PYTHON"] ?? [`${ROOT}.venv/bin/python`].find(existsSync) ?? "python3";
    child = spawn(python, ["-m", "tests.serve_tiny"], { cwd: ROOT, stdio: ["pipe", "pipe", "inherit"] });
    for await (const line of createInterface({ input: child.stdout! })) {
      url = line;
      break;
    }
    if (!url) throw new Error(`${python} -m tests.serve_tiny gave no address`);
  }
  process.env["EVERLONG_URL"] = url; // the tests run in children
  return async () => {
    if (child?.exitCode === null) {
      child.stdin!.end();
      await once(child, "exit");
    }
  };
}
