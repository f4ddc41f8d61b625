// Time that the page is visible, from the browser's steady clock.

export class Stopwatch {
  #total = 0;
  #since = null;

  constructor() {
    document.addEventListener("visibilitychange", () => (document.hidden ? this.#stop() : this.#start()));
    this.restart();
  }

  restart() {
    this.#total = 0;
    this.#since = null;
    if (!document.hidden) this.#start();
  }

  seconds() {
    return (this.#total + (this.#since === null ? 0 : performance.now() - this.#since)) / 1000;
  }

  #start() {
    this.#since ??= performance.now();
  }

  #stop() {
    if (this.#since !== null) this.#total += performance.now() - this.#since;
    this.#since = null;
  }
}
