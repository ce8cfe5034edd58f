import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./app.js";
import { refresh } from "./state/library.js";
import { connection } from "./state/server.js";
import "./page.css";

render(<App />, document.body);

// Whenever the server is there (again), ask it what it has.
effect(() => {
  if (connection.value.state === "online") queueMicrotask(() => void refresh());
});
