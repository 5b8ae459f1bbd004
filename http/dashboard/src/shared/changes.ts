/**
 * What changes, by kind. Who shows something says which kinds concern it; what learns of a change (an event stream, a
 * poll) announces it, and everybody concerned asks the API again: what is shown is always the API's own answer.
 */
import { changed } from "./page";

export type Kind = "node" | "vm" | "task" | "task_log" | "image" | "alert" | "activity" | "system" | "site" | "job" | "person" | "webhook";

type Listener = { kinds: ReadonlySet<Kind>; notify: () => void };

const listeners = new Set<Listener>();

/** Whether changes are heard of at the moment. */
export const connection = { live: false };

export function setLive(live: boolean): void {
  if (connection.live === live) return;
  connection.live = live;
  changed();
}

/** Call `notify` whenever something of these kinds changed. Returns what ends it. */
export function listen(kinds: Kind[], notify: () => void): () => void {
  const listener = { kinds: new Set(kinds), notify };
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Something of this kind changed; of any kind, where none is said. */
export function announce(kind?: Kind): void {
  for (const listener of listeners) if (!kind || listener.kinds.has(kind)) listener.notify();
}

export function heard(): boolean {
  return listeners.size > 0;
}
