import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const here = (path) => fileURLToPath(new URL(path, import.meta.url));

export default defineConfig({
  resolve: {
    alias: {
      "everlong-client": here("../js/src/index.ts"),
      // Its version for browsers decodes entities with innerHTML, which the page's security policy forbids.
      "decode-named-character-reference": here("../node_modules/decode-named-character-reference/index.js"),
    },
  },
  server: { proxy: { "^/(v1|readyz)": { target: process.env.EVERLONG_URL ?? "http://127.0.0.1:8080", ws: true } } },
  build: {
    // Part of the server's package and committed, so that running the server does not need Node. File names have no hashes.
    outDir: here(process.env.EVERLONG_PAGE ?? "../../server/everlong_server/web"),
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    rollupOptions: { output: { entryFileNames: "assets/page.js", chunkFileNames: "assets/[name].js", assetFileNames: "assets/page[extname]" } },
  },
});
