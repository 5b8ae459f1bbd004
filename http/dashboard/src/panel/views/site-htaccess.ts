/** What becomes of a site's .htaccess files: a verdict beside each line. */
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
        <div class="head"><h2>${found.ready ? "Nothing in .htaccess files is missed here" : "Some of .htaccess files is not so here"}</h2></div>
        <p class="quiet">They are Apache's, and nginx does not read them. What blocks has to be seen to before visitors come.</p>
        ${found.complete ? nothing : html`<p class="failure">Not all of them could be read.</p>`}
        ${found.files.map(
          (file) => html`<h3 class="mono">${file.path}</h3>
          ${table(
            ["Line", "", "", "Why"],
            file.lines.map(
              (line) =>
                html`<tr><td>${line.line}</td><td class="mono">${line.text}</td><td>${badge(line.verdict)}</td><td>${line.reason}</td></tr>`,
            ),
            "It says nothing.",
          )}`,
        )}
        ${found.files.length ? nothing : html`<p>The site has no such files.</p>`}`,
      )}`,
    dispose: () => report.dispose(),
  };
}
