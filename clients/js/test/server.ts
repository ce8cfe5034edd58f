/** The server under test: the one at EVERLONG_URL, or else a new one with a tiny model. */
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
    if (!url) throw new Error(`${python} -m tests.serve_tiny printed no address`);
  }
  process.env["EVERLONG_URL"] = url; // inherited by the child processes that run the tests
  return async () => {
    if (child?.exitCode === null) {
      child.stdin!.end();
      await once(child, "exit");
    }
  };
}
