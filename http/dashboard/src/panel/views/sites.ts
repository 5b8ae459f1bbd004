/** The sites: the list, and making one. */
import { html, nothing, type TemplateResult } from "lit-html";
import { everyOf } from "../../shared/api";
import { inLetters } from "../../shared/idn";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, named, note, when } from "../../shared/ui";
import { list } from "../../shared/list";
import { order } from "../form";
import type { Me, Membership, Site } from "../model";
import { SITE_TYPES, typeLabel } from "../site-types";
import { openAlerts } from "./alerts";

export function sitesView(me: Me): View {
  const memberships = me.role === "member" ? new Resource<Membership[]>(() => everyOf("/memberships"), ["person"]) : null;
  // An administrator, who reads those of everybody, has them on the page Server.
  const alerts = me.role === "administrator" ? null : openAlerts();
  const mayCreate = () => !memberships || memberships.value?.some(isManager);
  const sites = list<Site>({
    title: "Sites",
    path: "/sites",
    kinds: ["site"],
    searchable: true,
    filters: [{ name: "status", label: "Status", options: ["active", "suspended", "creating", "deleting", "failed"] }],
    buttons: () => (mayCreate() ? html`<button class="primary" @click=${() => createSite(me)}>Create site</button>` : nothing),
    before: () => alerts?.draw() ?? nothing,
    rows: (sites, filtered) => (sites.length ? sitesTable(me, sites) : nothingYet(me, filtered)),
  });
  return {
    ...sites,
    dispose: () => {
      sites.dispose?.();
      alerts?.dispose?.();
      memberships?.dispose();
    },
  };
}

/** Who has no account of their own makes sites where they are a manager of all of another's. */
function isManager({ role, site_id, status, suspended }: Membership): boolean {
  return role === "manager" && site_id === null && status === "active" && !suspended;
}

function sitesTable(me: Me, sites: Site[]): TemplateResult {
  const all = sites.some((site) => site.owner_id !== me.id);
  return html`<div class="scroll"><table>
    <thead><tr><th scope="col">Domain</th><th scope="col">Status</th><th scope="col">Type</th>
      ${all ? html`<th scope="col">Owner</th>` : nothing}<th scope="col">Other names</th><th scope="col">Made</th></tr></thead>
    <tbody>${sites.map(
      (site) => html`<tr>
      <td><a href="#/sites/${site.id}"><b>${named(site.domain)}</b></a></td><td>${badge(site.status, site.reason)}</td><td>${typeLabel(site.type)}</td>
      ${all ? html`<td>${site.owner_email}</td>` : nothing}
      <td class="quiet">${site.aliases.length ? `${inLetters(site.aliases[0] ?? "")}${site.aliases.length > 1 ? ` and ${site.aliases.length - 1} more` : ""}` : "—"}</td>
      <td>${when(site.created_at)}</td></tr>`,
    )}</tbody></table></div>`;
}

function nothingYet(me: Me, filtered: boolean): TemplateResult {
  if (filtered) return html`<p class="empty">No site matches.</p>`;
  if (me.role === "member")
    return html`<p class="empty">No site is open to you. What you are invited to is at <a href="#/memberships">your memberships</a>.</p>`;
  return html`<div class="empty"><p>No sites yet. A site is a domain with its files.</p>
    <button class="primary" @click=${() => createSite(me)}>Create the first site</button></div>`;
}

function createSite(me: Me): void {
  const chosen = (type: string | undefined) => SITE_TYPES.find((each) => each.type === (type || SITE_TYPES[0]?.type));
  order<Site>("site.create", {
    title: "Create site",
    action: "Create",
    fields: (values) => [
      "domain",
      "type",
      ...(chosen(values["type"])?.fields ?? []),
      "www",
      "aliases",
      ...(me.role === "customer" ? [] : ["owner_email"]),
    ],
    wishes: {
      domain: { label: "Domain", placeholder: "shop.example.org" },
      type: {
        label: "Type",
        value: SITE_TYPES[0]?.type ?? "",
        options: SITE_TYPES.map(({ type, label, text }) => ({ value: type, label: `${label}: ${text}` })),
      },
      proxy_target: { label: "Upstream", placeholder: "https://app.example.org:8443", required: true },
      title: { label: "Title", hint: "Title of the WordPress; empty: the domain" },
      entry: { label: "Entry point", hint: "package.module:name for Python, a path such as server.js for node", required: true },
      runtime: { required: true },
      interface: { hint: "Of a Python application" },
      folder: { label: "Folder", hint: "Below the site's home" },
      health_path: { label: "Health check path" },
      www: { label: "Also at www. of the domain", value: "on", hint: "Of example.org, for instance, not of shop.example.org" },
      aliases: { label: "Other domains", hint: "example.net, for instance; one a line" },
      owner_email: {
        label: "Owner",
        hint: me.role === "member" ? "In whose account, if you are a member of several" : "Its owner; you, if left empty",
      },
    },
    done: (site) => {
      note(`${site.domain} is being created.`);
      go(`/sites/${site.id}`);
    },
  });
}
