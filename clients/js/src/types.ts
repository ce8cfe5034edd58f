/** Short names for the types of the API. The generated openapi.ts has their definitions. */
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

export type Document = Schemas["Document"];
/** The file formats that the server accepts. `max_bytes` limits a file, and also the text in it. */
export type Formats = Schemas["FormatList"];
/** An upload in parts, running or complete. */
export type Upload = Schemas["Upload"];
export type DocumentText = Schemas["DocumentText"];
export type Session = Schemas["Session"];
export type SessionMemory = Schemas["SessionMemory"];
export type MemoryPart = Schemas["MemoryPart"];
export type MemoryLayer = Schemas["MemoryLayer"];
export type MemoryPhrase = Schemas["MemoryPhrase"];
export type Message = Schemas["Message"];
export type Evidence = Schemas["Evidence"];
export type Quote = Schemas["Quote"];
export type Recall = Schemas["Recall"];
export type Usage = Schemas["Usage"];
export type Model = Schemas["ServedModel"];

/** One page of a list. If `has_more`, request the next page `after` the last id. */
export interface List<T> {
  data: T[];
  has_more?: boolean;
}

/** The sampling parameters and the recall of an answer. The server chooses those that are missing. */
export type Sampling = Partial<Omit<Schemas["CreateMessage"], "content" | "stream">>;

/** The events of one answer, in this order, with any number of deltas. */
export type ResponseEvent =
  | { type: "response.created"; response: { id: string } }
  | { type: "response.evidence"; response_id: string; evidence: Evidence[] }
  | { type: "response.output_text.delta"; response_id: string; delta: string }
  | { type: "response.completed"; message: Message };

export interface CallOptions {
  /** Aborts the call, which then throws the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface PostOptions extends CallOptions {
  /** The server does the work of requests with the same key only once. Default: a new key for each call. */
  idempotencyKey?: string | undefined;
}
