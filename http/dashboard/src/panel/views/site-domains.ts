/** The names that a site answers for, and where its paths are sent. */
import { html, nothing } from "lit-html";
import { inLetters } from "../../shared/idn";
import { badge, named } from "../../shared/ui";
import { order } from "../form";
import type { Redirect, Site, SiteDomain } from "../model";
import { leads } from "./pointing";
import { rows, together } from "./rows";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function siteDomains(site: Site, viewer: Viewer): SitePart {
  return together(
    ...(viewer.may("domain.list") ? [names(site, viewer)] : []),
    ...(viewer.may("redirect.list") ? [redirects(site, viewer)] : []),
  );
}

function names(site: Site, { may }: Viewer): SitePart {
  return rows<SiteDomain>({
    title: "Domains",
    text: "The site answers at each of them. The primary domain is its name here. Where to point them is on the overview.",
    path: `/sites/${site.id}/domains`,
    heads: ["Name", "Leads", "", ""],
    buttons: (now) => (may("domain.add") ? html`<button class="primary" @click=${() => add(now)}>Add domain</button>` : nothing),
    row: (domain, now) => html`<tr><td>${named(domain.name, "both")}</td><td>${leads(domain.points)}</td>
      <td>${domain.primary ? badge("primary") : domain.redirect_to_primary ? html`<span class="quiet">sent to ${named(now.domain)}</span>` : nothing}</td>
      <td class="act">${
        domain.primary
          ? nothing
          : html`${
              may("domain.update")
                ? html`<button @click=${() => makePrimary(domain)}>Make primary</button>
            <button @click=${() => redirectName(domain, now)}>${domain.redirect_to_primary ? "Serve the site" : "Redirect to primary"}</button>`
                : nothing
            }
            ${may("domain.delete") ? html`<button class="danger" @click=${() => remove(domain)}>Delete</button>` : nothing}`
      }</td></tr>`,
    empty: "No names.",
  });
}

function add(site: Site): void {
  order("domain.add", {
    title: `Add a domain to ${site.domain}`,
    text: "Its DNS has to point to this server; a certificate is ordered automatically.",
    action: "Add",
    known: { id: site.id },
    wishes: {
      name: { placeholder: "www.example.org" },
      redirect_to_primary: { label: `Redirect its visitors to ${inLetters(site.domain)}` },
    },
  });
}

function makePrimary(domain: SiteDomain): void {
  order("domain.update", {
    title: `Make ${domain.name} the primary domain?`,
    text: "The present primary domain stays a domain of the site.",
    action: "Make primary",
    known: { id: domain.id, primary: true },
    fields: [],
  });
}

function redirectName(domain: SiteDomain, site: Site): void {
  const redirect_to_primary = !domain.redirect_to_primary;
  order("domain.update", {
    title: redirect_to_primary ? `Redirect ${domain.name} to ${site.domain}?` : `Serve the site at ${domain.name} as well?`,
    action: redirect_to_primary ? "Redirect" : "Serve the site",
    known: { id: domain.id, redirect_to_primary },
    fields: [],
  });
}

function remove(domain: SiteDomain): void {
  order("domain.delete", {
    title: `Delete ${domain.name}?`,
    text: "Visitors no longer get an answer there.",
    action: "Delete",
    dangerous: true,
    known: { id: domain.id },
  });
}

function redirects(site: Site, { may }: Viewer): SitePart {
  return rows<Redirect>({
    title: "Redirects",
    path: `/sites/${site.id}/redirects`,
    heads: ["Path", "Is sent to", "Status", ""],
    buttons: (now) => (may("redirect.create") ? html`<button @click=${() => addRedirect(now)}>Create redirect</button>` : nothing),
    row: (
      redirect,
    ) => html`<tr><td class="mono">${redirect.path}${redirect.below ? html` <span class="quiet">and below</span>` : nothing}</td>
      <td class="mono">${redirect.target}</td><td>${redirect.status}</td>
      <td class="act">${may("redirect.delete") ? html`<button class="danger" @click=${() => removeRedirect(redirect)}>Delete</button>` : nothing}</td></tr>`,
    empty: "No redirects.",
  });
}

function addRedirect(site: Site): void {
  order("redirect.create", {
    title: "Create redirect",
    action: "Create",
    known: { id: site.id },
    wishes: {
      path: { placeholder: "/old" },
      target: { label: "Target", placeholder: "/new or https://example.org/new" },
      status: {
        label: "How",
        kind: "select",
        options: [
          { value: "301", label: "301: for good" },
          { value: "302", label: "302: for now" },
          { value: "307", label: "307: for now, and forms stay forms" },
          { value: "308", label: "308: for good, and forms stay forms" },
        ],
      },
      below: { label: "Every path that starts with it as well", hint: "" },
    },
  });
}

function removeRedirect(redirect: Redirect): void {
  order("redirect.delete", {
    title: `Delete the redirect of ${redirect.path}?`,
    action: "Delete",
    dangerous: true,
    known: { id: redirect.id },
  });
}
