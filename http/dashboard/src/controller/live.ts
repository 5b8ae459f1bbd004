/** One event stream for the page. After a gap (a lost connection) everything is asked for again. */
import { announce, heard, setLive, type Kind } from "../shared/changes";

const KINDS: Kind[] = ["node", "vm", "task", "task_log", "image", "alert", "activity", "system"];
const RETRY_MILLISECONDS = 3000;

let source: EventSource | null = null;

export function start(): void {
  if (source) return;
  const opened = new EventSource("/api/v1/events");
  source = opened;
  opened.onopen = () => {
    setLive(true);
    announce();
  };
  opened.onerror = () => {
    setLive(false);
    // The browser connects again by itself unless the answer was not a stream at all.
    if (opened.readyState === EventSource.CLOSED && source === opened) {
      source = null;
      setTimeout(() => heard() && start(), RETRY_MILLISECONDS);
    }
  };
  for (const kind of KINDS) opened.addEventListener(kind, () => announce(kind));
}

export function stop(): void {
  source?.close();
  source = null;
  setLive(false);
}
