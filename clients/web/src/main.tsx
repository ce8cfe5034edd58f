import { effect } from "@preact/signals";
import { render } from "preact";
import { App } from "./app.js";
import { loaded, refresh, showErrors } from "./state/library.js";
import { theme } from "./state/settings.js";
import { connection } from "./state/server.js";
import "./styles/index.css";

render(<App />, document.body);

effect(() => {
  document.documentElement.style.colorScheme = theme.value;
});

// Reload documents, sessions and models each time that the server becomes available.
effect(() => {
  if (connection.value.state === "online") queueMicrotask(() => void showErrors(refresh));
});

// Another tab or program may have changed them while this tab was in the background.
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible" && connection.value.state === "online" && loaded.value) void showErrors(refresh);
});
