export { Everlong } from "./client.js";
export { Conversation } from "./conversation.js";
export type { Documents } from "./documents.js";
export * from "./errors.js";
export { newIdempotencyKey } from "./retry.js";
export type { Sessions } from "./sessions.js";
export type { Options } from "./transport.js";
export type * from "./types.js";
