/** `Paced`: work that changes the page again and again, at most once per frame. */

/** After work that took one second, the page is free for this many seconds. */
const REST = 3;
const LONGEST_REST = 5000; // ms

/** Runs work on request. The longer it takes to show its result, the longer the page rests before the next run, so that it responds to clicks. */
export class Paced {
  readonly #work: () => void;
  #frame = 0;
  #timer = 0;
  /** When the page has rested, as a time of `performance.now`. */
  #rested = 0;

  constructor(work: () => void) {
    this.#work = work;
  }

  /** Runs the work soon; once for all requests until then. */
  request(): void {
    if (this.#frame || this.#timer) return;
    const rest = this.#rested - performance.now();
    if (rest <= 0) this.#frame = requestAnimationFrame(() => this.runNow());
    else
      this.#timer = setTimeout(() => {
        this.#timer = 0;
        this.#frame = requestAnimationFrame(() => this.runNow());
      }, rest);
  }

  runNow(): void {
    cancelAnimationFrame(this.#frame);
    clearTimeout(this.#timer);
    [this.#frame, this.#timer] = [0, 0];
    const begun = performance.now();
    this.#work();
    // The page is rendered in a microtask, before the timer.
    setTimeout(() => {
      const now = performance.now();
      this.#rested = now + Math.min(REST * (now - begun), LONGEST_REST);
    });
  }
}
