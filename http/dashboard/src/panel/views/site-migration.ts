/** How a site answers here, compared with the host that it came from. */
import { html, type TemplateResult } from "lit-html";
import { api, ApiError } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, count, facts, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Job, MigrationReport, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function siteMigration(first: Site, viewer: Viewer): SitePart {
  const report = new Resource<{ last: MigrationReport | null }>((signal) => last(first, signal), ["job"]);
  return {
    draw: (site) => html`
      <div class="head"><h2>Compared with the old host</h2><span class="gap"></span>
        ${viewer.may("migration.verify") ? html`<button @click=${() => verify(site)}>Compare</button>` : ""}</div>
      ${shown(report, ({ last }) => (last ? drawn(last) : html`<p class="empty">It was not compared yet.</p>`))}`,
    dispose: () => report.dispose(),
  };
}

async function last(site: Site, signal: AbortSignal): Promise<{ last: MigrationReport | null }> {
  try {
    return { last: await api.get(`/sites/${site.id}/migration/verify`, {}, signal) };
  } catch (error) {
    if (error instanceof ApiError && error.status === 404) return { last: null };
    throw error;
  }
}

function drawn(now: MigrationReport): TemplateResult {
  return html`
    ${facts([
      ["Verdict", badge(now.verdict)],
      ["Old host", html`<span class="mono">${now.address}</span>`],
      ["URLs compared", String(now.urls)],
      ...(now.php ? [["PHP", phpBeforeAndNow(now.php)] as [string, string]] : []),
      ["Compared", html`<a href="#/jobs/${now.job_id}">${when(now.created_at)}</a>`],
    ])}
    ${table(
      ["", "", "Why"],
      now.checks.map((one) => html`<tr><td>${one.name}</td><td>${badge(one.ok ? "ok" : "blocked")}</td><td>${one.reason ?? ""}</td></tr>`),
      "Nothing was checked.",
    )}
    ${
      now.differences.length
        ? html`<div class="head"><h2>${count(now.differences.length, "address")} answered otherwise</h2></div>
          ${table(
            ["Address", "Difference"],
            now.differences.map((one) => html`<tr><td class="mono">${one.path}</td><td>${one.difference}</td></tr>`),
            "",
          )}`
        : ""
    }
    ${
      now.tables.length
        ? html`<h2>Tables that came with it</h2>
          ${table(
            ["Table", "Rows of the dump", "That came", "Here now", ""],
            now.tables.map(
              (one) => html`<tr><td class="mono">${one.database}.${one.table}</td><td>${known(one.rows_before)}</td>
                <td>${known(one.rows_imported)}</td><td>${known(one.rows)}</td><td>${one.changed ? "written since" : ""}</td></tr>`,
            ),
            "",
          )}`
        : ""
    }`;
}

function phpBeforeAndNow(php: NonNullable<MigrationReport["php"]>): string {
  const lacks = php.missing.length ? `, without ${php.missing.join(", ")}` : "";
  return `${php.before ?? "not known"} there, ${php.now} here${lacks}`;
}

function known(rows: number | null): string {
  return rows === null ? "not known" : String(rows);
}

function verify(site: Site): void {
  order<Job>("migration.verify", {
    title: `Compare ${site.domain} with its old host`,
    text: "Both get requests for the same URLs. Nothing is changed.",
    known: { id: site.id },
    fields: ["address", "https", "port"],
    action: "Compare",
    done: (job) => go(`/jobs/${job.id}`),
  });
}
