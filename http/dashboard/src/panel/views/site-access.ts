/** Who signs in to a site by SFTP, or to a shell: the access accounts, and how a client connects. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, facts, secret, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { AccessAccount, AccessAccountCreated, HostKeys, Site } from "../model";
import type { Viewer } from "../rights";
import { rows, together } from "./rows";
import type { SitePart } from "./site";

const KEYS = {
  label: "Public keys",
  kind: "textarea" as const,
  placeholder: "ssh-ed25519 AAAA… ada@laptop",
  hint: "One a line, as in authorized_keys",
};

export function siteAccess(site: Site, viewer: Viewer): SitePart {
  return together(accounts(site, viewer), server());
}

function accounts(site: Site, { may }: Viewer): SitePart {
  return rows<AccessAccount>({
    title: "Access accounts",
    text: "Each opens this site only, as the site's own account. None works while the site is suspended.",
    path: `/sites/${site.id}/sftp`,
    heads: ["Login", "Kind", "Signs in with", "Connects by", "Made", ""],
    buttons: (now) => (may("sftp.create") ? html`<button class="primary" @click=${() => add(now)}>Create account</button>` : nothing),
    row: (account) => html`<tr><td class="mono">${account.login}</td>
      <td>${account.kind}${account.folder ? html` <span class="quiet mono">${account.folder}</span>` : nothing}</td>
      <td>${account.has_password ? html`<div>a password</div>` : nothing}${account.keys.map(
        (key) =>
          html`<div title=${key.fingerprint}><span class="mono">${key.type}</span> <span class="quiet">${key.comment || key.fingerprint}</span></div>`,
      )}</td>
      <td class="mono">${connection(account)}</td><td>${when(account.created_at)}</td>
      <td class="act">${
        may("sftp.update")
          ? html`<button @click=${() => newPassword(account)}>Reset password</button> <button @click=${() => replaceKeys(account)}>Replace keys</button>`
          : nothing
      }
        ${may("sftp.delete") ? html`<button class="danger" @click=${() => remove(account)}>Delete</button>` : nothing}</td></tr>`,
    empty: "No access accounts yet. Files are changed on the page Files as well.",
  });
}

function connection({ kind, login, port }: AccessAccount): string {
  const host = `${login}@${location.hostname}`;
  return kind === "shell" ? `ssh -p ${port} ${host}` : `sftp -P ${port} ${host}`;
}

/** By what a client knows at its first visit that it has reached this server. */
function server(): SitePart {
  const keys = new Resource<HostKeys>((signal) => api.get("/sftp/host-keys", {}, signal));
  return {
    draw: () => html`<h2>Host keys of the server</h2>
      <p class="quiet">Compare them with what the client shows when it connects for the first time.</p>
      ${shown(keys, (found) =>
        table(
          ["Type", "Fingerprint"],
          found.keys.map((key) => html`<tr><td class="mono">${key.type}</td><td class="mono">${key.fingerprint}</td></tr>`),
          "It has none yet.",
        ),
      )}`,
    dispose: () => keys.dispose(),
  };
}

function add(site: Site): void {
  order<AccessAccountCreated>("sftp.create", {
    title: `Create an access account for ${site.domain}`,
    text: "Without a password and without keys a password is made up, and shown once.",
    action: "Create",
    known: { id: site.id },
    fields: (values) => ["name", ...(site.shell ? ["kind"] : []), ...(values["kind"] === "shell" ? [] : ["folder"]), "password", "keys"],
    wishes: {
      name: { label: "Name", hint: `It signs in as ${site.account}-NAME` },
      kind: { label: "Kind", hint: "sftp: files alone; shell: commands as well" },
      folder: { label: "Folder", placeholder: "public/shop", hint: "Beneath the site's home; empty for all of it" },
      keys: KEYS,
    },
    done: shownOnce,
  });
}

function newPassword(account: AccessAccount): void {
  order<AccessAccountCreated>("sftp.update", {
    title: `Reset the password of ${account.login}?`,
    text: "The password before is refused, and open sessions of this account end.",
    action: "Reset",
    dangerous: true,
    known: { id: account.site_id, account_id: account.id, new_password: true },
    fields: [],
    done: shownOnce,
  });
}

function replaceKeys(account: AccessAccount): void {
  order("sftp.update", {
    title: `Keys of ${account.login}`,
    text: `These replace ${account.keys.length === 1 ? "the key" : `the ${account.keys.length} keys`} that it has. Open sessions of this account end.`,
    action: "Replace",
    known: { id: account.site_id, account_id: account.id },
    fields: ["keys"],
    wishes: { keys: { ...KEYS, required: true } },
  });
}

function remove(account: AccessAccount): void {
  order("sftp.delete", {
    title: `Delete ${account.login}?`,
    text: "Its sessions end, with everything that they have started. The files stay.",
    action: "Delete",
    dangerous: true,
    known: { id: account.site_id, account_id: account.id },
  });
}

function shownOnce(account: AccessAccountCreated): TemplateResult | undefined {
  if (!account.password) return undefined;
  return html`${facts([
    ["Login", html`<span class="mono">${account.login}</span>`],
    ["Connects by", html`<span class="mono">${connection(account)}</span>`],
    ["Kind", badge(account.kind)],
  ])}<p>The password. It is shown only once.</p>${secret(account.password)}`;
}
