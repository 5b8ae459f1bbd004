/** A site's .htaccess files, with a verdict for each line. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, shown, table } from "../../shared/ui";
import type { HtaccessReport, Site } from "../model";
import type { SitePart } from "./site";

export function siteHtaccess(site: Site): SitePart {
  const report = new Resource<HtaccessReport>((signal) => api.get(`/sites/${site.id}/htaccess`, {}, signal), ["site"]);
  return {
    draw: () =>
      html`${shown(
        report,
        (found) => html`
        <div class="head"><h2>${found.ready ? "No .htaccess line blocks the site" : ".htaccess files need attention"}</h2></div>
        <p class="quiet">Apache reads these files, nginx does not. Resolve lines that block before visitors come.</p>
        ${found.complete ? nothing : html`<p class="failure">Some files could not be read.</p>`}
        ${found.files.map(
          (file) => html`<h3 class="mono">${file.path}</h3>
          ${table(
            ["Line", "", "", "Why"],
            file.lines.map(
              (line) =>
                html`<tr><td>${line.line}</td><td class="mono">${line.text}</td><td>${badge(line.verdict)}</td><td>${line.reason}</td></tr>`,
            ),
            "It has no directives.",
          )}`,
        )}
        ${found.files.length ? nothing : html`<p>The site has no such files.</p>`}`,
      )}`,
    dispose: () => report.dispose(),
  };
}
