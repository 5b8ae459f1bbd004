/**
 * The panel answers in JSON alone, so a page that shows what changes asks again: every few seconds while somebody looks
 * at it, and more often for a while after a change of its own.
 */
import { announce, setLive } from "../shared/changes";

const POLL_MILLISECONDS = 4000;
const SOON_MILLISECONDS = 1000;
/** What was ordered just now has an outcome about now. */
const BUSY_MILLISECONDS = 15_000;

let timer: number | undefined;
let busyUntil = 0;

export function start(): void {
  if (timer === undefined) schedule();
}

export function stop(): void {
  clearTimeout(timer);
  timer = undefined;
}

function schedule(): void {
  timer = window.setTimeout(poll, Date.now() < busyUntil ? SOON_MILLISECONDS : POLL_MILLISECONDS);
}

function poll(): void {
  if (!document.hidden) announce();
  schedule();
}

/** What every call to the API tells of: whether there was an answer, and whether something was changed. */
addEventListener("answered", (event) => {
  const { method, status } = (event as CustomEvent<{ method: string; status: number }>).detail;
  setLive(status !== 0 && status !== 503);
  if (method === "GET" || timer === undefined) return;
  busyUntil = Date.now() + BUSY_MILLISECONDS;
  clearTimeout(timer);
  announce();
  schedule();
});
document.addEventListener("visibilitychange", () => {
  if (timer === undefined || document.hidden) return;
  clearTimeout(timer);
  poll();
});
