/**
 * Something of the API that a view shows: loaded, and loaded again when the event stream says that it may have changed.
 * One request at a time; changes while it runs lead to one more, never to a pile.
 */
import { type ApiError, failureOf } from "./api";
import { listen, type Kind } from "./changes";
import { changed } from "./page";

const SETTLE_MILLISECONDS = 250;

export class Resource<T> {
  value: T | null = null;
  error: ApiError | null = null;
  private running: AbortController | null = null;
  private again = false;
  private timer: number | undefined;
  private readonly unlisten: () => void;

  constructor(
    private readonly fetch: (signal: AbortSignal) => Promise<T>,
    kinds: Kind[] = [],
  ) {
    this.unlisten = kinds.length ? listen(kinds, () => this.refresh()) : () => {};
    void this.load();
  }

  /** Load again soon: many calls shortly after one another are one request. */
  refresh(): void {
    if (this.running) this.again = true;
    else this.timer ??= window.setTimeout(() => void this.load(), SETTLE_MILLISECONDS);
  }

  /** Load again now, forgetting a request that is under way (its question has changed). */
  async load(): Promise<void> {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.running?.abort();
    const running = new AbortController();
    this.running = running;
    try {
      const value = await this.fetch(running.signal);
      if (running.signal.aborted) return;
      this.value = value;
      this.error = null;
    } catch (error) {
      if (running.signal.aborted) return;
      this.error = failureOf(error);
      if (this.error.status === 401) dispatchEvent(new Event("signed-out"));
    } finally {
      // Another load may have taken its place.
      if (this.running === running) this.ended();
    }
  }

  private ended(): void {
    this.running = null;
    changed();
    if (this.again) {
      this.again = false;
      this.refresh();
    }
  }

  dispose(): void {
    this.unlisten();
    clearTimeout(this.timer);
    this.running?.abort();
  }
}
