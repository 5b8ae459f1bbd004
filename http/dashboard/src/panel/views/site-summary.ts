/** What a site is: its names, certificate, limits, and what is done to it as a whole. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, named, note, shown, size, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import type { Certificate, Job, Me, Site, SiteUpdated } from "../model";
import { SITE_TYPES, typeLabel } from "../site-types";
import type { Viewer } from "../rights";
import { openAlerts } from "./alerts";
import { pointingAdvice, pointingFacts } from "./pointing";
import type { SitePart } from "./site";

const LIMITS = ["cpu_percent", "memory_mib", "processes", "disk_mib"] as const;

export function siteSummary(first: Site, viewer: Viewer): SitePart {
  const certificate = new Resource<Certificate>((signal) => api.get(`/sites/${first.id}/ssl`, {}, signal), ["site"]);
  const alerts = openAlerts(({ resource_kind, resource_id }) => resource_kind === "site" && resource_id === first.id);
  return {
    draw: (site) => html`
      ${site.reason ? html`<p class="failure">${site.status === "suspended" ? "Suspended" : "It stopped"}: ${site.reason}</p>` : nothing}
      ${alerts.draw()}
      ${facts([
        ["Type", typeLabel(site.type)],
        ...(site.proxy_target ? [["Served from", html`<span class="mono">${site.proxy_target}</span>`] as [string, Fragment]] : []),
        ...pointingFacts(site.pointing),
        ...(site.preview_url
          ? [["Preview", html`<a href=${site.preview_url} target="_blank" rel="noreferrer">${site.preview_url}</a>`] as [string, Fragment]]
          : []),
        ["Visitors by HTTP", site.force_https ? "are sent to HTTPS" : "stay with HTTP"],
        ...(site.fallback_page
          ? [["Paths without a file", html`<span class="mono">${site.fallback_page}</span>`] as [string, Fragment]]
          : []),
        ...(site.cache_assets ? [["Files with a hash in their name", "are kept by browsers for a year"] as [string, Fragment]] : []),
        ...(site.utf8_pages ? [["Pages of HTML", "are sent as UTF-8"] as [string, Fragment]] : []),
        ["Owner", site.owner_email],
        ["Account", html`<span class="mono">${site.account}</span>`],
        ["Made", when(site.created_at)],
      ])}
      ${pointingAdvice(site.pointing)}
      <h2>Certificate</h2>
      ${shown(certificate, certificateFacts)}
      <div class="head"><h2>Limits</h2><span class="gap"></span>
        ${viewer.me.role === "administrator" ? html`<button @click=${() => changeLimits(site)}>Change limits</button>` : nothing}</div>
      ${limits(site)}
      ${actions(site, viewer)}`,
    dispose: () => {
      alerts.dispose?.();
      certificate.dispose();
    },
  };
}

export function certificateFacts(now: Certificate): TemplateResult {
  return html`${facts([
    ["State", badge(now.state)],
    ["For", now.names.length ? html`${now.names.map((name) => html`<div>${named(name)}</div>`)}` : "—"],
    ...(now.challenge ? [["Proven by", [now.challenge, ...now.wildcards].join(", ")] as [string, Fragment]] : []),
    ["From", now.issuer ?? now.source ?? "—"],
    ["Until", when(now.not_after)],
    [
      "Shown to visitors",
      now.served === null ? "not looked at yet" : now.served ? badge("ok") : badge("missing", "Visitors get another certificate"),
    ],
    ...(now.next_attempt_at ? [["Tried again", when(now.next_attempt_at)] as [string, Fragment]] : []),
  ])}
  ${now.last_error ? html`<p class="failure">${now.last_error}</p>` : nothing}
  ${now.left_out.map(({ name, reason }) => html`<p class="failure">Without ${named(name)}: ${reason}</p>`)}`;
}

function limits({ limits: { cpu_percent, memory_mib, processes, disk_mib } }: Site): TemplateResult {
  const none = "unlimited";
  return facts([
    ["Processor", cpu_percent ? `${cpu_percent} % of a core` : none],
    ["Memory", memory_mib ? size(memory_mib) : none],
    ["Processes", processes ? processes.toLocaleString() : none],
    ["Disk", disk_mib ? size(disk_mib) : none],
  ]);
}

function actions(site: Site, { me, may }: Viewer): Fragment {
  if (!may("site.update", "site.suspend", "site.delete")) return nothing;
  const free = me.role === "administrator" || site.suspended_by !== "administrator";
  return html`<h2>Actions</h2>
    <p class="actions">
    ${may("site.update") ? html`<button @click=${() => change(site, me)}>Change site</button>` : nothing}
    ${may("site.suspend") && site.status === "active" ? html`<button @click=${() => suspend(site)}>Suspend</button>` : nothing}
    ${may("site.suspend") && site.status === "suspended" && free ? html`<button @click=${() => unsuspend(site)}>Unsuspend</button>` : nothing}
    ${may("site.delete") && site.status !== "deleting" && free ? html`<button class="danger" @click=${() => remove(site)}>Delete site</button>` : nothing}</p>`;
}

function change(site: Site, me: Me): void {
  order<SiteUpdated>("site.update", {
    title: `Change ${site.domain}`,
    action: "Save",
    known: { id: site.id },
    initial: {
      force_https: site.force_https,
      fallback_page: site.fallback_page,
      cache_assets: site.cache_assets,
      utf8_pages: site.utf8_pages,
      proxy_target: site.proxy_target,
      owner_email: site.owner_email,
    },
    fields: [
      "force_https",
      ...(["static", "php"].includes(site.type) ? ["fallback_page"] : []),
      ...(["static", "php", "wordpress"].includes(site.type) ? ["cache_assets", "utf8_pages"] : []),
      ...(SITE_TYPES.find((each) => each.type === site.type)?.fields ?? []).filter((field) => field === "proxy_target"),
      ...(me.role === "administrator" ? ["owner_email"] : []),
    ],
    wishes: {
      force_https: { label: "Redirect HTTP to HTTPS" },
      fallback_page: {
        label: "Page for paths without a file",
        hint: "For a single-page application, as /index.html. A missing script, style or picture stays a 404.",
      },
      cache_assets: { label: "Let browsers keep files with a hash in their name for a year" },
      utf8_pages: {
        label: "Send pages of HTML as UTF-8",
        hint: "For pages that do not say their character set. It overrules what they say.",
      },
      proxy_target: { label: "Upstream" },
      owner_email: {
        label: "Owner",
        hint: "With another owner, the access accounts are deleted and the passwords of the databases replaced",
      },
    },
    done: handedOver,
  });
}

/** What a change of owner has ended; nothing to show without one. */
function handedOver({ domain, owner_email, handover }: SiteUpdated): TemplateResult | undefined {
  if (!handover) return undefined;
  const { sftp_logins, database_users, job_id } = handover;
  return html`<p>${named(domain)} belongs to ${owner_email} now. A <a href="#/jobs/${job_id}">job</a> ends what was open to the previous owner.</p>
    ${facts([
      ["Access accounts deleted", sftp_logins.join(", ") || "none"],
      ["Database users with a new, unknown password", database_users.join(", ") || "none"],
    ])}
    ${database_users.length ? html`<p class="advice">Set a new password for each database user whose program needs it, on the page Databases.</p>` : nothing}`;
}

function changeLimits(site: Site): void {
  order<Site>("site.update", {
    title: `Limits of ${site.domain}`,
    text: "For all programs of the site together. Empty: no limit.",
    action: "Save",
    known: { id: site.id },
    initial: site.limits,
    fields: LIMITS,
    wishes: {
      cpu_percent: { label: "Processor, in percent of a core" },
      memory_mib: { label: "Memory, in MiB" },
      disk_mib: { label: "Disk, in MiB" },
    },
  });
}

function suspend(site: Site): void {
  order<Site>("site.suspend", {
    title: `Suspend ${site.domain}`,
    text: "Visitors see a page that says so, and nothing of the site runs. Its files and databases stay.",
    action: "Suspend",
    dangerous: true,
    known: { id: site.id, suspended: true },
    wishes: { reason: { required: true } },
  });
}

function unsuspend(site: Site): void {
  order<Site>("site.suspend", {
    title: `Unsuspend ${site.domain}?`,
    text: site.reason ? `It is suspended: ${site.reason}` : "Visitors see the site again.",
    action: "Unsuspend",
    known: { id: site.id, suspended: false, reason: undefined },
  });
}

function remove(site: Site): void {
  order<Job>("site.delete", {
    title: `Delete ${site.domain}`,
    text: "Its files, its certificate and everything else of it are deleted permanently. Visitors lose access at once.",
    action: "Delete",
    dangerous: true,
    known: { id: site.id },
    typed: site.domain,
    typedAs: "confirm",
    done: () => {
      note(`${site.domain} is being deleted.`);
      go("/sites");
    },
  });
}
