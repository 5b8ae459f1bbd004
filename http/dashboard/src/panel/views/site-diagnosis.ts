/** What is wrong with a site, by what that shows, and the repairs. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, shown } from "../../shared/ui";
import { order } from "../form";
import type { Job, Site, SiteCheck, SiteDiagnosis } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

const NAMES: Record<SiteCheck["name"], string> = {
  permissions: "Owners and modes of files",
  configuration: "Configuration of web server and PHP",
  runtime: "PHP, or the application",
  certificate: "Certificate",
  dns: "DNS",
  database: "Databases",
};

export function siteDiagnosis(site: Site, { may }: Viewer): SitePart {
  const diagnosis = new Resource<SiteDiagnosis>((signal) => api.get(`/sites/${site.id}/diagnose`, {}, signal), ["site", "job"]);
  return {
    draw: (now) => html`
      ${shown(
        diagnosis,
        (found) => html`
        <div class="head"><h2>${found.healthy ? "Nothing is wrong" : "Faults were found"}</h2></div>
        ${found.checks.map(
          (check) => html`
          <div class="head"><h3>${NAMES[check.name]}</h3>${badge(check.state)}<span class="gap"></span>
            ${
              check.findings.some((each) => each.repair) && may("site.repair")
                ? html`<button class="primary" @click=${() => repair(now, check)}>Repair</button>`
                : nothing
            }</div>
          ${check.findings.length ? html`<ul>${check.findings.map((each) => html`<li>${each.evidence}</li>`)}</ul>` : nothing}`,
        )}`,
      )}`,
    dispose: () => diagnosis.dispose(),
  };
}

function repair(site: Site, check: SiteCheck): void {
  order<Job>("site.repair", {
    title: `Repair ${site.domain}?`,
    text: `${NAMES[check.name]}: repaired from its record, then checked again. Visitors are not affected.`,
    action: "Repair",
    known: { id: site.id, repair: check.name },
    done: (job) => location.assign(`#/jobs/${job.id}`),
  });
}
