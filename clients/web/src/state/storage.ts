/** What this browser keeps for the page. Where it keeps nothing (blocked, full), it is known until the page is left. */
class BrowserStorage {
  readonly #storage: () => Storage;
  readonly #fallback = new Map<string, string | null>();

  constructor(storage: () => Storage) {
    this.#storage = storage;
  }

  get(name: string): string | null {
    if (this.#fallback.has(name)) return this.#fallback.get(name)!;
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
      this.#fallback.delete(name);
    } catch {
      this.#fallback.set(name, value);
    }
  }
}

// Even naming them throws where they are blocked.
export const persistent = new BrowserStorage(() => localStorage);
/** Of this tab alone. */
export const perTab = new BrowserStorage(() => sessionStorage);
