/** The PHP of a site: its version, its settings, its extensions. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, facts, note, shown, table } from "../../shared/ui";
import { order } from "../form";
import type { PhpExtension, PhpVersion, Site, SitePhp } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function sitePhp(site: Site, { may }: Viewer): SitePart {
  const php = new Resource<SitePhp>((signal) => api.get(`/sites/${site.id}/php`, {}, signal), ["site"]);
  const versions = new Resource<PhpVersion[]>((signal) => api.get("/php/versions", {}, signal));
  const extensions = new Resource<PhpExtension[]>((signal) => api.get(`/sites/${site.id}/php/extensions`, {}, signal), ["site"]);
  return {
    draw: (now) => html`
      ${shown(php, (found) => {
        const { settings } = found;
        return html`
        <div class="head"><h2>PHP ${found.version}</h2><span class="gap"></span>
          ${may("site.php_restart") ? html`<button @click=${() => restart(now)}>Restart</button>` : nothing}
          ${may("site.php_update") ? html`<button class="primary" @click=${() => change(now, found, versions.value ?? [])}>Change version and settings</button>` : nothing}</div>
        ${facts([
          ["Memory of a request", `${settings.memory_limit_mib} MiB`],
          ["Largest upload", `${settings.upload_max_filesize_mib} MiB`],
          ["Longest a request runs", `${settings.max_execution_time} s`],
          ["Values of a form", String(settings.max_input_vars)],
          ["Errors shown to visitors", settings.display_errors ? badge("warning", "Visitors see paths and code of the site") : "no"],
          ["Errors that are logged", settings.error_reporting ?? "—"],
          ["Time zone", settings.timezone ?? "—"],
          ["Requests at once", String(settings.workers)],
        ])}`;
      })}
      <h2>Extensions</h2>
      ${shown(extensions, (all) =>
        table(
          ["Extension", ""],
          all.map((each) => html`<tr><td class="mono">${each.name}</td><td>${each.enabled ? badge("active") : badge("off")}</td></tr>`),
          "This version has none.",
        ),
      )}`,
    dispose: () => {
      php.dispose();
      versions.dispose();
      extensions.dispose();
    },
  };
}

function change(site: Site, php: SitePhp, versions: PhpVersion[]): void {
  order("site.php_update", {
    title: `PHP of ${site.domain}`,
    text: "Visitors are not affected: the new PHP answers before the old one ends.",
    action: "Save",
    wide: true,
    known: { id: site.id },
    initial: { version: php.version, ...php.settings },
    wishes: {
      version: { kind: "select", options: versions.map(({ version }) => ({ value: version, label: `PHP ${version}` })) },
      memory_limit_mib: { label: "Memory of a request, in MiB" },
      upload_max_filesize_mib: { label: "Largest upload, in MiB" },
      max_execution_time: { label: "Longest a request runs, in seconds" },
      max_input_vars: { label: "Values of a form" },
      display_errors: { label: "Show errors to visitors" },
      workers: { label: "Requests at once" },
    },
  });
}

function restart(site: Site): void {
  order("site.php_restart", {
    title: `Restart the PHP of ${site.domain}?`,
    text: "With empty caches. Visitors are not affected.",
    action: "Restart",
    known: { id: site.id },
    done: () => note("PHP was restarted."),
  });
}
