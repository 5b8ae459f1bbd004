/** One site: what it is, and a place for each thing that belongs to it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { changed, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, failure } from "../../shared/ui";
import type { Me, Site } from "../model";
import { filesTab } from "../files/browser";
import { siteMembers } from "./members";
import { siteApp } from "./site-app";
import { siteBackups } from "./site-backups";
import { siteCertificate } from "./site-certificate";
import { siteDatabases } from "./site-databases";
import { siteDns } from "./site-dns";
import { siteDomains } from "./site-domains";
import { siteLogs } from "./site-logs";
import { sitePhp } from "./site-php";
import { siteSchedules } from "./site-schedules";
import { siteSummary } from "./site-summary";
import { siteWordPress } from "./site-wordpress";

/** What a tab shows. It is given the site as it is now, each time. */
export interface SitePart {
  draw(site: Site): TemplateResult;
  dispose?(): void;
}

/** A tab of a site's page, below `#/sites/{id}/{path}`. `of`: the types of site that have it; all, without it. */
export interface SiteTab {
  path: string;
  label: string;
  of?: Site["type"][];
  /** Whether it is the owner's alone, and administrators'. */
  ownersAlone?: boolean;
  open: (site: Site, me: Me, rest: string[]) => SitePart;
}

/** The tabs, in their order: a line each. */
export const SITE_TABS: SiteTab[] = [
  { path: "", label: "Overview", open: siteSummary },
  { path: "wordpress", label: "WordPress", of: ["wordpress"], open: siteWordPress },
  { path: "app", label: "Application", of: ["app"], open: siteApp },
  { path: "domains", label: "Domains", open: siteDomains },
  { path: "dns", label: "DNS", open: siteDns },
  { path: "files", label: "Files", open: filesTab },
  { path: "databases", label: "Databases", open: siteDatabases },
  { path: "php", label: "PHP", of: ["php", "wordpress"], open: sitePhp },
  { path: "schedules", label: "Schedules", open: siteSchedules },
  { path: "backups", label: "Backups", open: siteBackups },
  { path: "certificate", label: "Certificate", open: siteCertificate },
  { path: "members", label: "Members", ownersAlone: true, open: siteMembers },
  { path: "logs", label: "Logs", open: (site, _, [source]) => siteLogs(site, source) },
];

export function siteView(me: Me, id: string, rest: string[]): View {
  const site = new Resource<Site>((signal) => api.get(`/sites/${id}`, {}, signal), ["site"]);
  let place = rest;
  const own = (now: Site) => me.role === "administrator" || now.owner_id === me.id;
  let opened: { part: SitePart; name: string } | null = null;
  const show = (now: Site): TemplateResult => {
    const name = place.join("/");
    if (opened?.name !== name) {
      opened?.part.dispose?.();
      const tab = SITE_TABS.find((each) => each.path === (place[0] ?? ""));
      opened = { part: tab?.open(now, me, place.slice(1)) ?? { draw: () => html`<p>There is no such page.</p>` }, name };
    }
    return opened.part.draw(now);
  };
  return {
    get title() {
      return site.value?.domain ?? "Site";
    },
    follow: (parts) => {
      if (parts[0] !== "sites" || parts[1] !== id) return false;
      place = parts.slice(2);
      changed();
      return true;
    },
    draw: () => {
      const now = site.value;
      if (!now) return html`${failure(site.error)}${site.error ? nothing : html`<p class="quiet">Loading…</p>`}`;
      const here = place[0] ?? "";
      return html`
      <div class="head"><a class="quiet" href="#/sites">Sites</a><span class="quiet">/</span><h1>${now.domain}</h1>${badge(now.status, now.reason)}
        <span class="gap"></span><a class="button" href="https://${now.domain}" target="_blank" rel="noreferrer">Open it</a></div>
      ${failure(site.error)}
      <nav class="tabs" aria-label="Of this site">${SITE_TABS.filter(
        (tab) => (!tab.of || tab.of.includes(now.type)) && (own(now) || !tab.ownersAlone),
      ).map(
        (tab) =>
          html`<a href="#/sites/${id}${tab.path ? `/${tab.path}` : ""}" aria-current=${tab.path === here ? "page" : nothing}>${tab.label}</a>`,
      )}</nav>
      ${show(now)}`;
    },
    dispose: () => {
      opened?.part.dispose?.();
      site.dispose();
    },
  };
}
