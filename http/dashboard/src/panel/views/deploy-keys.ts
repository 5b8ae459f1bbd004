/** SSH keys with which deployments read private git repositories, each for one host whose host key was confirmed. */
import { html, nothing, type TemplateResult } from "lit-html";
import { ask, given, secret, table, when } from "../../shared/ui";
import { order } from "../form";
import { perform } from "../operations";
import type { DeployKey, DeployKeyMade, Site } from "../model";
import type { Viewer } from "../rights";
import { rows } from "./rows";
import type { SitePart } from "./site";

export function deployKeys(site: Site, { may }: Viewer): SitePart {
  return rows<DeployKey>({
    title: "Deploy keys",
    text: "A private repository is fetched by SSH. Its host is given the public key, as one that may read; nobody sees the private one.",
    path: `/sites/${site.id}/deploy-keys`,
    heads: ["Host", "Its own key", "Public key", "Created", ""],
    buttons: (now) => (may("app.deploy_key_make") ? html`<button @click=${() => make(now)}>Create deploy key</button>` : nothing),
    row: (key) => html`<tr><td class="mono">${named(key)}</td><td class="mono">${key.host_key}</td>
      <td>${secret(key.public_key)}</td><td>${when(key.made_at)}</td>
      <td class="act">${
        may("app.deploy_key_delete") ? html`<button class="danger" @click=${() => forget(site, key)}>Delete</button>` : nothing
      }</td></tr>`,
    empty: "None: repositories that anybody may read need no key.",
  });
}

function named({ host, port }: { host: string; port: number }): string {
  return port === 22 ? host : `${host}:${port}`;
}

function make(site: Site): void {
  ask({
    title: `Create a deploy key for ${site.domain}`,
    text: "The keys of the host are shown first: compare them with those that it publishes. Nothing is sent to it before.",
    fields: [
      { name: "host", label: "Host", required: true, placeholder: "git.example" },
      { name: "port", label: "Port", kind: "number", value: "22", least: 1, most: 65535 },
    ],
    action: "Show host keys",
    wide: true,
    submit: async (values) => {
      const of = { id: site.id, ...given(values, ["host"]), port: Number(values["port"] || 22) };
      const { host_keys } = await perform<DeployKeyMade>("app.deploy_key_make", of);
      return table(
        ["Key", "Fingerprint", ""],
        host_keys.map(
          (key) => html`<tr><td>${key.type}</td><td class="mono">${key.fingerprint}</td>
            <td><button @click=${(event: Event) => confirm(event, of, key.fingerprint)}>Confirm</button></td></tr>`,
        ),
        "It shows none.",
      );
    },
  });
}

function confirm(event: Event, of: object, host_key: string): void {
  (event.currentTarget as Element).closest("dialog")?.close();
  order<DeployKeyMade>("app.deploy_key_make", {
    title: "Create the deploy key",
    text: "The key is used only with a host that shows this host key.",
    known: { ...of, host_key },
    fields: [],
    action: "Create",
    wide: true,
    done: ({ key }) => (key ? told(key) : undefined),
  });
}

function told(key: DeployKey): TemplateResult {
  return html`<p>Give this public key to ${key.host}, as a deploy key that may read.</p>${secret(key.public_key)}`;
}

function forget(site: Site, key: DeployKey): void {
  order("app.deploy_key_delete", {
    title: `Delete the deploy key for ${named(key)}?`,
    text: "Private repositories of that host can no longer be fetched. The running release stays. Remove the public key there as well.",
    action: "Delete",
    dangerous: true,
    known: { id: site.id, key_id: key.id },
  });
}
