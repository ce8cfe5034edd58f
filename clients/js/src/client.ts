import { Documents } from "./documents.js";
import { Sessions } from "./sessions.js";
import { type Options, Transport } from "./transport.js";
import type { CallOptions, FoundPassage, List, Model, SearchFilters, SearchIn } from "./types.js";

/** A client of an everlong server. It holds only its options, so it is cheap to create. */
export class Everlong {
  readonly documents: Documents;
  readonly sessions: Sessions;
  readonly baseUrl: string;
  readonly #transport: Transport;

  constructor(options: Options = {}) {
    this.#transport = new Transport(options);
    this.baseUrl = this.#transport.baseUrl;
    this.documents = new Documents(this.#transport);
    this.sessions = new Sessions(this.#transport);
  }

  /**
   * The passages that fit a query best, without an answer. `limit`: the maximum number; 10 by default. `rerank`: false saves a few tenths
   * of a second and finds less.
   */
  async search(
    query: string,
    where: SearchIn,
    options: CallOptions & { limit?: number; filters?: SearchFilters; rerank?: boolean } = {},
  ): Promise<FoundPassage[]> {
    const { limit, filters, rerank, signal } = options;
    const json = { query, ...where, limit, filters, rerank };
    return (await this.#transport.json<List<FoundPassage>>({ method: "POST", path: "/v1/search", json, signal })).data;
  }

  /** The models that answer, loaded or not, the default one first. (The server also lists its embedding model, whose vectors have dimensions.) */
  async models(options: CallOptions = {}): Promise<Model[]> {
    const listed = await this.#transport.json<List<Model | { dimensions: number }>>({ method: "GET", path: "/v1/models", ...options });
    return listed.data.filter((each): each is Model => !("dimensions" in each));
  }
}
