/** The logs of a site, as they grow. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { listen } from "../../shared/changes";
import { changed } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { bytes, failure, shown } from "../../shared/ui";
import { go } from "../../shared/page";
import type { Site, SiteLog, SiteLogLines } from "../model";
import type { SitePart } from "./site";

const KEPT = 2000;
const AT_ONCE = 500;
const SETTLE_MILLISECONDS = 300;

export function siteLogs(site: Site, source = "access"): SitePart {
  const sources = new Resource<SiteLog[]>((signal) => api.get(`/sites/${site.id}/logs/sources`, {}, signal), ["site"]);
  let lines: string[] = [];
  let cursor: string | null = null;
  let containing = "";
  let following = true;
  let timer: number | undefined;
  // One after the other: two that read on from the same place would show the same lines twice.
  const log = new Resource<void>(async (signal) => {
    for (let more = true; more;) {
      const read: SiteLogLines = await api.get<SiteLogLines>(
        `/sites/${site.id}/logs/read`,
        { source, q: containing, limit: AT_ONCE, after: cursor },
        signal,
      );
      if (signal.aborted) return;
      lines = [...lines, ...(read.gap ? ["… lines in between are gone …"] : []), ...read.lines].slice(-KEPT);
      cursor = read.cursor;
      more = read.more && cursor !== null;
    }
  });
  const unlisten = listen(["site"], () => following && log.refresh());
  const again = () => {
    lines = [];
    cursor = null;
    void log.load();
  };
  const search = (event: InputEvent) => {
    clearTimeout(timer);
    containing = (event.target as HTMLInputElement).value;
    timer = window.setTimeout(again, SETTLE_MILLISECONDS);
  };
  const follow = () => {
    following = !following;
    if (following) log.refresh();
    changed();
  };
  return {
    draw: () => html`
      <div class="head"><h2>Log</h2>
        ${shown(
          sources,
          (
            all,
          ) => html`<select aria-label="Log" @change=${(event: Event) => go(`/sites/${site.id}/logs/${(event.target as HTMLSelectElement).value}`)}>
          ${all.map((each) => html`<option value=${each.source} ?selected=${each.source === source}>${each.source}, ${bytes(each.size)}</option>`)}</select>`,
        )}
        <input type="search" aria-label="Lines that contain" placeholder="Lines that contain" @input=${search}>
        <span class="gap"></span><button aria-pressed=${following} @click=${follow}>${following ? "Pause" : "Follow"}</button></div>
      ${failure(log.error)}
      ${
        lines.length
          ? html`<pre class="log" tabindex="0" aria-label="Lines of the log">${lines.join("\n")}</pre><p class="quiet count">${
              lines.length === KEPT ? `the last ${KEPT.toLocaleString()} lines` : nothing
            }</p>`
          : html`<p class="empty">${containing ? "No line contains that." : "Nothing was logged yet."}</p>`
      }`,
    dispose: () => {
      clearTimeout(timer);
      unlisten();
      sources.dispose();
      log.dispose();
    },
  };
}
