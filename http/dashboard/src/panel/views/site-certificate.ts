/** A site's certificate: what is served, ordering one, one of the customer's own. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { note, shown } from "../../shared/ui";
import { order } from "../form";
import type { Certificate, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";
import { certificateFacts } from "./site-summary";

export function siteCertificate(site: Site, { may }: Viewer): SitePart {
  const certificate = new Resource<Certificate>((signal) => api.get(`/sites/${site.id}/ssl`, {}, signal), ["site"]);
  return {
    draw: (now) => html`
      ${shown(
        certificate,
        (found) => html`${certificateFacts(found)}
        <p class="actions">
          ${may("certificate.issue") ? html`<button class="primary" @click=${() => issue(now, found)}>${found.source === "acme" ? "Renew it now" : "Get one now"}</button>` : nothing}
          ${may("certificate.upload") ? html`<button @click=${() => upload(now)}>Upload one of your own</button>` : nothing}
          ${found.source && may("certificate.remove") ? html`<button class="danger" @click=${() => remove(now)}>Take it away</button>` : nothing}</p>
        ${found.fingerprint ? html`<p class="quiet">SHA-256 <span class="mono">${found.fingerprint}</span></p>` : ""}`,
      )}`,
    dispose: () => certificate.dispose(),
  };
}

function issue(site: Site, found: Certificate): void {
  order("certificate.issue", {
    title: `Get a certificate for ${site.domain}?`,
    text: "It is ordered by ACME for all names of the site. What is served stays until there is something better.",
    action: "Order it",
    known: { id: site.id },
    initial: { challenge: found.challenge, wildcards: found.wildcards },
    wishes: {
      challenge: { label: "Names are proven by", hint: "dns-01: records in the site's zones, where this server answers for them" },
      wildcards: { label: "Wildcards", placeholder: `*.${site.domain}`, hint: "One a line; by dns-01 alone. Renewals keep them." },
    },
    done: () => note("A certificate is being ordered."),
  });
}

function upload(site: Site): void {
  order("certificate.upload", {
    title: `Upload a certificate for ${site.domain}`,
    text: "It is checked against the site's names before it is served, and replaced by nobody but you.",
    action: "Serve it",
    wide: true,
    known: { id: site.id },
    wishes: {
      certificate: { label: "Certificate and those of its issuers", placeholder: "-----BEGIN CERTIFICATE-----" },
      key: { label: "Private key", kind: "textarea", placeholder: "-----BEGIN PRIVATE KEY-----", hint: "PEM, not encrypted" },
    },
  });
}

function remove(site: Site): void {
  order("certificate.remove", {
    title: `Take the certificate of ${site.domain} away?`,
    text: "Where there is an authority, another one is ordered.",
    action: "Take it away",
    dangerous: true,
    known: { id: site.id },
  });
}
