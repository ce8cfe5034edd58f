/** `Pausable`: work that a person can pause, resume and give up. */

/** Thrown by `Pausable.run` after `giveUp`. */
export class GivenUp extends Error {}

export class Pausable {
  #stop = new AbortController();
  #resume: (() => void) | null = null;
  #givenUp = false;

  /** Runs `work`, which ends when its signal is aborted. After a pause, runs it again. Throws `GivenUp`. */
  async run<T>(work: (signal: AbortSignal) => Promise<T>): Promise<T> {
    for (;;) {
      if (this.#givenUp) throw new GivenUp();
      const { signal } = (this.#stop = new AbortController());
      const paused = new Promise<void>((resume) => (this.#resume = resume));
      try {
        return await work(signal);
      } catch (error) {
        if (!signal.aborted) throw error;
      }
      await paused;
    }
  }

  pause(): void {
    this.#stop.abort();
  }

  resume(): void {
    this.#resume?.();
  }

  giveUp(): void {
    this.#givenUp = true;
    this.pause();
    this.resume();
  }
}
