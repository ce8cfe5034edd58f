import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./app.js";
import { refresh } from "./library.js";
import { link } from "./server.js";
import "./page.css";

render(<App />, document.body);

// Whenever the server is there (again), ask it what it has.
effect(() => {
  if (link.value.state === "there") queueMicrotask(() => void refresh());
});
