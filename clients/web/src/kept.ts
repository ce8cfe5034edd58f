/** What this browser keeps for the page. Where it keeps nothing (blocked, full), it is known until the page is left. */
class Kept {
  readonly #storage: () => Storage;
  readonly #here = new Map<string, string | null>();

  constructor(storage: () => Storage) {
    this.#storage = storage;
  }

  get(name: string): string | null {
    if (this.#here.has(name)) return this.#here.get(name)!;
    try {
      return this.#storage().getItem(name);
    } catch {
      return null;
    }
  }

  /** Null forgets it. */
  set(name: string, value: string | null): void {
    try {
      if (value === null) this.#storage().removeItem(name);
      else this.#storage().setItem(name, value);
      this.#here.delete(name);
    } catch {
      this.#here.set(name, value);
    }
  }
}

// Even naming them throws where they are blocked.
export const always = new Kept(() => localStorage);
/** Of this tab alone. */
export const here = new Kept(() => sessionStorage);
