/**
 * Uploads of a site's files, in parts of half a megabyte. They go on while another page of the dashboard is looked at; a
 * part that was not taken is sent again, and one whose file is chosen again after the page was closed goes on from what
 * had come (the service keeps it for a day).
 */
import { api, ApiError, failureOf } from "../../shared/api";
import { changed } from "../../shared/page";
import type { FileUpload } from "../model";
import { joined } from "./paths";
import { sendParts } from "./parts";

export interface Sending {
  site: string;
  folder: string;
  path: string;
  file: File;
  sent: number;
  state: "waiting" | "sending" | "checking" | "done" | "stopped";
  /** Why it stopped. */
  error: ApiError | null;
  /** A file of that name is there; it may be replaced if this is said. */
  replace: boolean;
}

const all = new Set<Sending>();
const listeners = new Set<(done: Sending) => void>();
const stops = new Map<Sending, AbortController>();
let running: Promise<void> | null = null;

export function sendings(site: string): Sending[] {
  return [...all].filter((each) => each.site === site);
}

/** Call `notify` with each upload that ends well. Returns what ends it. */
export function onUploaded(notify: (done: Sending) => void): () => void {
  listeners.add(notify);
  return () => listeners.delete(notify);
}

export function send(site: string, folder: string, files: Iterable<File>, replace = false): void {
  for (const file of files) {
    const path = joined(folder, file.name);
    for (const other of all) if (other.site === site && other.path === path && other.state !== "sending") all.delete(other);
    all.add({ site, folder, path, file, sent: 0, state: "waiting", error: null, replace });
  }
  next();
}

/** Go on with one that stopped. */
export function again(one: Sending, replace = one.replace): void {
  Object.assign(one, { state: "waiting", error: null, replace });
  next();
}

/** Leave out one that waits or has ended, or end one that is being sent: what has come of it is discarded. */
export function drop(one: Sending): void {
  stops.get(one)?.abort();
  all.delete(one);
  changed();
}

function next(): void {
  changed();
  running ??= sendInTurn().finally(() => {
    running = null;
    if ([...all].some((each) => each.state === "waiting")) next();
  });
}

async function sendInTurn(): Promise<void> {
  for (let one = waiting(); one; one = waiting()) {
    const stop = new AbortController();
    stops.set(one, stop);
    try {
      one.state = "sending";
      await sendOne(one, stop.signal);
      one.state = "done";
    } catch (thrown) {
      const error = failureOf(thrown);
      Object.assign(one, { state: "stopped", error });
    } finally {
      stops.delete(one);
      changed();
    }
    if (one.state === "done") for (const notify of listeners) notify(one);
  }
}

function waiting(): Sending | undefined {
  return [...all].find((each) => each.state === "waiting");
}

async function sendOne(one: Sending, stop: AbortSignal): Promise<void> {
  const { file, site } = one;
  const upload = (await started(one)) ?? (await api.post<FileUpload>(`/sites/${site}/files/upload`, openingOf(one)));
  const place = `/sites/${site}/files/upload/${upload.id}`;
  const digest = await sendParts(place, file, upload, stop, (sent) => {
    one.sent = sent;
    changed();
  });
  if (stop.aborted) {
    await api.delete(place, {});
    throw new ApiError(0, "invalid", "It was stopped.", null);
  }
  one.state = "checking";
  changed();
  await api.post(`${place}/finish`, { sha256: digest });
}

function openingOf(one: Sending): object {
  return { path: one.path, size: one.file.size, replace: one.replace };
}

/** What had come of the same file before: it has the same place and size, and its content is compared at the end. */
async function started(one: Sending): Promise<FileUpload | undefined> {
  const open = await api.get<FileUpload[]>(`/sites/${one.site}/files/upload`);
  return open.find(
    (each) => each.status === "open" && each.path === one.path && each.size === one.file.size && each.replace === one.replace,
  );
}
