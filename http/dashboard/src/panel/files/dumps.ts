/**
 * Dumps of this computer that are uploaded into the site and then imported into one of its databases. The import starts
 * when the upload has ended, also while another page of the dashboard is looked at.
 */
import { api, failureOf } from "../../shared/api";
import { note } from "../../shared/ui";
import type { Database, Job, Site } from "../model";
import { joined } from "./paths";
import { onUploaded, send, type Sending } from "./uploads";
import { follow } from "./work";

/** Where dumps are uploaded to. The web server shows nothing of it. */
export const DUMPS = "private/dumps";

const waiting = new Map<string, { database: Database; replace: boolean }>();

/** Upload a dump, and import it into the database once it is there. `replace`: empty the database first. */
export async function importDump(site: Site, database: Database, file: File, replace: boolean): Promise<void> {
  try {
    await api.post(`/sites/${site.id}/files/mkdir`, { path: DUMPS, parents: true });
  } catch (thrown) {
    if (failureOf(thrown).code !== "conflict") throw thrown;
  }
  waiting.set(keyOf(site.id, joined(DUMPS, file.name)), { database, replace });
  send(site.id, DUMPS, [file], true);
}

onUploaded((done) => void start(done));

async function start({ site, path }: Sending): Promise<void> {
  const wanted = waiting.get(keyOf(site, path));
  if (!wanted) return;
  waiting.delete(keyOf(site, path));
  const { database, replace } = wanted;
  try {
    follow(site, await api.post<Job>(`/databases/${database.id}/import`, { path, replace }));
  } catch (thrown) {
    note(`${path} was uploaded, and not imported into ${database.name}: ${failureOf(thrown).message}`);
  }
}

function keyOf(site: string, path: string): string {
  return `${site}/${path}`;
}
