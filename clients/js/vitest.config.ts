import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    globalSetup: "test/server.ts",
    // Node 20 has a WebSocket only behind this flag.
    execArgv: process.versions.node.startsWith("20.") ? ["--experimental-websocket"] : [],
    testTimeout: 120_000,
    hookTimeout: 120_000,
    fileParallelism: false,
  },
});
