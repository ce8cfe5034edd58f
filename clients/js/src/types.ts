/** What goes over the wire, under short names. The shapes are the server's own: see openapi.ts. */
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

export type Document = Schemas["Document"];
/** What this server makes texts of; `max_bytes`: of a file, and of its text. */
export type Formats = Schemas["FormatList"];
/** A file that comes in parts, or has come. */
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

/** A page of a list; `has_more`: ask again `after` the last id. */
export interface List<T> {
  data: T[];
  has_more?: boolean;
}

/** How an answer is drawn, and what it is grounded on. What is left out, the server chooses. */
export type Sampling = Partial<Omit<Schemas["CreateMessage"], "content" | "stream">>;

/** What happens to one answer, in this order; between evidence and end come any number of deltas. */
export type ResponseEvent =
  | { type: "response.created"; response: { id: string } }
  | { type: "response.evidence"; response_id: string; evidence: Evidence[] }
  | { type: "response.output_text.delta"; response_id: string; delta: string }
  | { type: "response.completed"; message: Message };

export interface CallOptions {
  /** Ends the call early, with the signal's reason. */
  signal?: AbortSignal | undefined;
}

export interface PostOptions extends CallOptions {
  /** By this the server knows a request again, and does not do it twice. Default: a new one for each call. */
  idempotencyKey?: string | undefined;
}
