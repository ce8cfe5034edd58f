/** The browser's storage. If it is blocked or full, values are kept in memory until the page is closed. */
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

  /** The names of all values that begin with `prefix`. */
  names(prefix: string): string[] {
    const names = new Set(this.#fallback.keys());
    try {
      for (const name of Object.keys(this.#storage())) names.add(name);
    } catch {
      // blocked: there are only the values in memory
    }
    return [...names].filter((name) => name.startsWith(prefix) && this.get(name) !== null);
  }

  /** Sets the value; null removes it. */
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

// In functions, because even access to `localStorage` throws if it is blocked.
/** Survives the tab. All tabs share it. */
export const persistent = new BrowserStorage(() => localStorage);
