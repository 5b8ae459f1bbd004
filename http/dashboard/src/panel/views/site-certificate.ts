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
          ${may("certificate.issue") ? html`<button class="primary" @click=${() => issue(now, found)}>${found.source === "acme" ? "Renew" : "Issue"}</button>` : nothing}
          ${may("certificate.upload") ? html`<button @click=${() => upload(now)}>Upload certificate</button>` : nothing}
          ${found.source && may("certificate.remove") ? html`<button class="danger" @click=${() => remove(now)}>Remove</button>` : nothing}</p>
        ${found.fingerprint ? html`<p class="quiet">SHA-256 <span class="mono">${found.fingerprint}</span></p>` : ""}`,
      )}`,
    dispose: () => certificate.dispose(),
  };
}

function issue(site: Site, found: Certificate): void {
  order("certificate.issue", {
    title: `Issue a certificate for ${site.domain}?`,
    text: "Ordered by ACME for all domains of the site. The present certificate is served until the new one is ready.",
    action: "Issue",
    known: { id: site.id },
    initial: { challenge: found.challenge, wildcards: found.wildcards },
    wishes: {
      challenge: { label: "Challenge", hint: "dns-01: records in the site's zones, where this server answers for them" },
      wildcards: { label: "Wildcards", placeholder: `*.${site.domain}`, hint: "One a line; by dns-01 alone. Renewals keep them." },
    },
    done: () => note("A certificate is being ordered."),
  });
}

function upload(site: Site): void {
  order("certificate.upload", {
    title: `Upload a certificate for ${site.domain}`,
    text: "It is checked against the site's domains first, and never replaced automatically.",
    action: "Upload",
    wide: true,
    known: { id: site.id },
    wishes: {
      certificate: { label: "Certificate chain", placeholder: "-----BEGIN CERTIFICATE-----" },
      key: { label: "Private key", kind: "textarea", placeholder: "-----BEGIN PRIVATE KEY-----", hint: "PEM, not encrypted" },
    },
  });
}

function remove(site: Site): void {
  order("certificate.remove", {
    title: `Remove the certificate of ${site.domain}?`,
    text: "If ACME is configured, a new one is ordered.",
    action: "Remove",
    dangerous: true,
    known: { id: site.id },
  });
}
