/** The jobs that were asked for in a site's files: they are shown whichever folder is looked at, until they have ended. */
import { note } from "../../shared/ui";
import type { Job } from "../model";
import { jobLine } from "../views/jobs";

type Line = ReturnType<typeof jobLine>;

const lines = new Map<string, Set<Line>>();
const listeners = new Set<(site: string) => void>();

export function jobLines(site: string): Line[] {
  return [...(lines.get(site) ?? [])];
}

/** Call `notify` with the site of each job that ended. Returns what ends it. */
export function onWorkDone(notify: (site: string) => void): () => void {
  listeners.add(notify);
  return () => listeners.delete(notify);
}

export function follow(site: string, job: Job): void {
  const line = jobLine(job, (now) => {
    line.dispose();
    if (now.status === "succeeded") {
      lines.get(site)?.delete(line);
      note(`Done: ${now.title}.`);
    }
    for (const notify of listeners) notify(site);
  });
  const all = lines.get(site) ?? new Set();
  lines.set(site, all.add(line));
}
