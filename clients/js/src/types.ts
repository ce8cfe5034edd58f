/** Short names for the types of the API. The generated openapi.ts has their definitions. */
import type { components } from "./openapi.js";

type Schemas = components["schemas"];

export type Document = Schemas["Document"];
/** The documents that were made of an archive's files, in its order, and `notes` on the files that were left out. */
export type UploadedArchive = Schemas["UploadedArchive"];
export type DocumentNote = Schemas["DocumentNote"];
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
/** A message that is being answered, sent with `on_disconnect` "finish". */
export type RunningTurn = Schemas["RunningTurn"];
/** The options of a new session. */
export type NewSession = Partial<Omit<Schemas["CreateSession"], "documents">>;
export type Evidence = Schemas["Evidence"];
export type Citation = Schemas["Citation"];
export type Quote = Schemas["Quote"];
export type Recall = Schemas["Recall"];
export type Usage = Schemas["Usage"];
/** A passage that a search found. */
export type FoundPassage = Schemas["FoundPassage"];
/** Where to search: in documents with these ids, or in those of a session. */
export type SearchIn = { documents: string[] } | { session: string };
export type SearchFilters = Partial<Schemas["SearchFilters"]>;
/** A model that answers. While it is not loaded, the server knows only its name and its size. */
export type Model = Omit<Schemas["UnloadedModel"], "loaded"> & Partial<Omit<Schemas["ServedModel"], "loaded">> & { loaded: boolean };

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

/** What can be uploaded. */
export type Source =
  | string
  | Blob
  | ArrayBuffer
  | Uint8Array<ArrayBuffer>
  | ReadableStream<Uint8Array | string>
  | AsyncIterable<Uint8Array | string>;

/** Options of uploads that consist of one request. */
export interface ArchiveOptions extends PostOptions {
  /** The document's or archive's name. Default: the name of a File. */
  filename?: string | undefined;
  /**
   * Default: text/plain for strings and streams, the type of a Blob, else application/octet-stream, for which the server
   * detects the format.
   */
  contentType?: string | undefined;
  /** Called with the bytes sent so far. `total` is null for a stream. */
  onProgress?: ((sent: number, total: number | null) => void) | undefined;
  /** Called while the server converts the file, such as a scan whose text it recognises: with a page, from 1, and the number of pages. */
  onConversion?: ((page: number, pages: number) => void) | undefined;
  /** The language of text in scanned pages and pictures, such as "latin": a value of the server's setting EVERLONG_OCR_LANGUAGE. */
  ocrLanguage?: string | undefined;
}

export interface UploadOptions extends ArchiveOptions {
  /** Returns your document of the same file, if there is one that could be read, instead of a new one. */
  reuse?: boolean | undefined;
  /** Larger sources are sent in parts of this size in bytes, each with its own retries. Default: 8 MiB. */
  partSize?: number | undefined;
  /** An object in which an upload in parts records its progress. Pass it again to resume an interrupted upload. */
  state?: UploadState | undefined;
}

/** The progress of an upload in parts. One call of `upload` fills it in; a later call resumes from it. It can be stored as JSON. */
export interface UploadState {
  upload?: string;
  /** The ids of the parts that the server has, in order. */
  parts?: string[];
  /** The size of each part, in bytes. */
  partSize?: number;
}
