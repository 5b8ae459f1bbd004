/**
 * What changes, as it changes: one event stream for the page. An event says which thing changed; who shows it asks for it
 * again, so what is shown is always the API's own answer. After a gap (a lost connection) everything is asked for again.
 */
import { changed } from "./page";

export type Kind = "node" | "vm" | "task" | "task_log" | "image" | "alert" | "activity" | "system";
const KINDS: Kind[] = ["node", "vm", "task", "task_log", "image", "alert", "activity", "system"];
const RETRY_MILLISECONDS = 3000;

type Listener = { kinds: ReadonlySet<Kind>; notify: () => void };

const listeners = new Set<Listener>();
let source: EventSource | null = null;
export const connection = { live: false };

export function start(): void {
  if (source) return;
  const opened = new EventSource("/api/v1/events");
  source = opened;
  opened.onopen = () => {
    connection.live = true;
    for (const listener of listeners) listener.notify();
    changed();
  };
  opened.onerror = () => {
    connection.live = false;
    changed();
    // The browser connects again by itself unless the answer was not a stream at all.
    if (opened.readyState === EventSource.CLOSED && source === opened) {
      source = null;
      setTimeout(() => listeners.size && start(), RETRY_MILLISECONDS);
    }
  };
  for (const kind of KINDS) {
    opened.addEventListener(kind, () => {
      for (const listener of listeners) if (listener.kinds.has(kind)) listener.notify();
    });
  }
}

export function stop(): void {
  source?.close();
  source = null;
  connection.live = false;
}

/** Call `notify` whenever something of these kinds changed. Returns what ends it. */
export function listen(kinds: Kind[], notify: () => void): () => void {
  const listener = { kinds: new Set(kinds), notify };
  listeners.add(listener);
  return () => listeners.delete(listener);
}
