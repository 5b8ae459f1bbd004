/** One site: what it is, and a place for each thing that belongs to it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { inLetters } from "../../shared/idn";
import { changed, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, failure, named } from "../../shared/ui";
import type { Me, Site, SiteShown } from "../model";
import { filesTab } from "../files/browser";
import type { OperationName } from "../operations";
import { siteRights, type Viewer } from "../rights";
import { siteMembers } from "./members";
import { together } from "./rows";
import { siteAccess } from "./site-access";
import { appDeployments } from "./app-deployments";
import { appVariables } from "./app-variables";
import { deployKeys } from "./deploy-keys";
import { siteApp } from "./site-app";
import { siteBackups } from "./site-backups";
import { siteCertificate } from "./site-certificate";
import { siteDatabases } from "./site-databases";
import { siteDiagnosis } from "./site-diagnosis";
import { siteDns } from "./site-dns";
import { siteDomains } from "./site-domains";
import { PROTECTION, siteProtection } from "./site-protection";
import { frontControllers } from "./site-front-controllers";
import { siteHtaccess } from "./site-htaccess";
import { siteLogs } from "./site-logs";
import { siteMail } from "./site-mail";
import { siteMigration } from "./site-migration";
import { sitePhp } from "./site-php";
import { siteSchedules } from "./site-schedules";
import { siteStaging } from "./site-staging";
import { siteSummary } from "./site-summary";
import { siteWordPress } from "./site-wordpress";

/** What a tab shows. It is given the site as it is now, each time. */
export interface SitePart {
  draw(site: SiteShown): TemplateResult;
  dispose?(): void;
}

/** A tab of a site's page, below `#/sites/{id}/{path}`. `of`: the types of site that have it; all, without it. */
export interface SiteTab {
  path: string;
  label: string;
  of?: Site["type"][];
  /** It is shown to everybody who may do one of these. */
  for: OperationName[];
  open: (site: Site, viewer: Viewer, rest: string[]) => SitePart;
}

/** The tabs, in their order: a line each. */
export const SITE_TABS: SiteTab[] = [
  { path: "", label: "Overview", for: ["site.get"], open: siteSummary },
  { path: "wordpress", label: "WordPress", of: ["wordpress"], for: ["wordpress.get"], open: siteWordPress },
  { path: "staging", label: "Staging", of: ["wordpress"], for: ["staging.get"], open: siteStaging },
  {
    path: "app",
    label: "Application",
    of: ["app"],
    for: ["app.get"],
    open: (site, viewer) =>
      together(siteApp(site, viewer), appDeployments(site, viewer), deployKeys(site, viewer), appVariables(site, viewer)),
  },
  { path: "domains", label: "Domains", for: ["domain.list", "redirect.list"], open: siteDomains },
  { path: "protection", label: "Protection", for: PROTECTION, open: siteProtection },
  { path: "dns", label: "DNS", for: ["dns.list"], open: siteDns },
  { path: "files", label: "Files", for: ["file.list"], open: filesTab },
  { path: "access", label: "Access", for: ["sftp.list"], open: siteAccess },
  { path: "databases", label: "Databases", for: ["database.list"], open: siteDatabases },
  {
    path: "php",
    label: "PHP",
    of: ["php", "wordpress"],
    for: ["site.php_show"],
    open: (site, viewer) =>
      together(sitePhp(site, viewer), ...(viewer.may("front_controller.list") ? [frontControllers(site, viewer)] : [])),
  },
  { path: "schedules", label: "Schedules", for: ["schedule.list"], open: siteSchedules },
  { path: "mail", label: "Mail", for: ["site.mail"], open: siteMail },
  { path: "backups", label: "Backups", for: ["backup.list"], open: siteBackups },
  { path: "certificate", label: "Certificate", for: ["certificate.get"], open: siteCertificate },
  { path: "members", label: "Members", for: ["member.list"], open: siteMembers },
  { path: "diagnosis", label: "Diagnosis", for: ["site.diagnose"], open: siteDiagnosis },
  { path: "htaccess", label: ".htaccess", of: ["php", "wordpress", "static"], for: ["htaccess.analyse"], open: siteHtaccess },
  { path: "migration", label: "Migration", for: ["migration.report"], open: siteMigration },
  { path: "logs", label: "Logs", for: ["site.log_sources"], open: (site, _, [source]) => siteLogs(site, source) },
];

const notHere = () => html`<p>This page does not exist, or your role does not allow it.</p>`;

export function siteView(me: Me, id: string, rest: string[]): View {
  const site = new Resource<SiteShown>((signal) => api.get(`/sites/${id}`, {}, signal), ["site"]);
  const rights = siteRights(me, id);
  let place = rest;
  const tabs = (now: Site) => SITE_TABS.filter((tab) => (!tab.of || tab.of.includes(now.type)) && rights.may(...tab.for));
  let opened: { part: SitePart; name: string | null } | null = null;
  const show = (now: SiteShown): TemplateResult => {
    const tab = tabs(now).find((each) => each.path === (place[0] ?? ""));
    const name = tab ? place.join("/") : null;
    if (opened?.name !== name) {
      opened?.part.dispose?.();
      opened = { part: tab?.open(now, rights, place.slice(1)) ?? { draw: notHere }, name };
    }
    return opened.part.draw(now);
  };
  return {
    get title() {
      return inLetters(site.value?.domain ?? "Site");
    },
    follow: (parts) => {
      if (parts[0] !== "sites" || parts[1] !== id) return false;
      place = parts.slice(2);
      changed();
      return true;
    },
    draw: () => {
      const now = site.value;
      const error = site.error ?? rights.error;
      if (!now || !rights.known) return html`${failure(error)}${error ? nothing : html`<p class="quiet">Loading…</p>`}`;
      const here = place[0] ?? "";
      return html`
      <div class="head"><a class="quiet" href="#/sites">Sites</a><span class="quiet">/</span><h1>${named(now.domain)}</h1>${badge(now.status, now.reason)}
        <span class="gap"></span><a class="button" href="https://${now.domain}" target="_blank" rel="noreferrer">Open it</a></div>
      ${failure(error)}
      <nav class="tabs" aria-label="Of this site">${tabs(now).map(
        (tab) =>
          html`<a href="#/sites/${id}${tab.path ? `/${tab.path}` : ""}" aria-current=${tab.path === here ? "page" : nothing}>${tab.label}</a>`,
      )}</nav>
      ${show(now)}`;
    },
    dispose: () => {
      opened?.part.dispose?.();
      rights.dispose();
      site.dispose();
    },
  };
}
