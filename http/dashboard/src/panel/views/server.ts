/** The server: what it is, what it holds, and what needs somebody's attention. */
import { html, nothing } from "lit-html";
import { api, type Page } from "../../shared/api";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, shown, when } from "../../shared/ui";
import type { Alert, Job, ServerStatus } from "../model";
import { alertsTable } from "./alerts";
import { jobsTable } from "./jobs";
import { licensing } from "./licensing";

export function serverView(): View {
  const status = new Resource<ServerStatus>((signal) => api.get("/server/status", {}, signal), ["system"]);
  const alerts = new Resource<Page<Alert>>((signal) => api.get("/alerts", { page_size: 100 }, signal), ["alert"]);
  const running = new Resource<Page<Job>>((signal) => api.get("/jobs", { status: "running", page_size: 20 }, signal), ["job"]);
  const license = licensing();
  const failed = new Resource<Page<Job>>((signal) => api.get("/jobs", { status: "failed", page_size: 5 }, signal), ["job"]);
  return {
    title: "Server",
    draw: () => html`
      <div class="head"><h1>Server</h1></div>
      ${shown(
        status,
        (now) => html`
        <div class="tiles">
          ${tile("Sites", now.sites, "#/sites", ["active"])}
          ${tile("Jobs", now.jobs, "#/jobs", ["running", "queued"])}
          <a class="tile" href="#/server"><span>Alerts</span><b>${now.open_alerts}</b>
            <small>${now.open_alerts ? badge("warning", "they are below") : badge("ok")}</small></a>
        </div>
        ${facts([
          ["Host", now.hostname],
          ["Address of the panel", html`<a href=${now.url}>${now.url}</a>`],
          ["Version", `${now.version} (${now.edition})`],
          ["Installed", when(now.installed_at)],
          ["Install id", html`<span class="mono">${now.install_id}</span>`],
        ])}`,
      )}
      ${license.draw()}
      <h2>Alerts</h2>
      ${shown(alerts, (page) => alertsTable(page.items, () => alerts.load()))}
      <h2>Jobs under way</h2>
      ${shown(running, (page) => (page.items.length ? jobsTable(page.items) : html`<p class="empty">None.</p>`))}
      ${shown(failed, (page) => (page.items.length ? html`<h2>Jobs that failed last</h2>${jobsTable(page.items)}` : nothing))}`,
    dispose: () => {
      for (const each of [status, alerts, running, failed, license]) each.dispose();
    },
  };
}

/** How many there are in all, the number of each status below; `first` are named before the others. */
function tile(title: string, counts: Record<string, number>, link: string, first: string[]) {
  const known = [...first.filter((status) => counts[status]), ...Object.keys(counts).filter((status) => !first.includes(status))];
  const total = Object.values(counts).reduce((sum, number) => sum + number, 0);
  return html`<a class="tile" href=${link}><span>${title}</span><b>${total}</b>
    <small>${known.map((status) => html`<span>${badge(status)} ${counts[status]}</span>`)}</small></a>`;
}
