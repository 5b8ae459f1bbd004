/** Protected paths of a site, which ask visitors for a password, and denied paths, which no visitor sees. */
import { html, nothing, type TemplateResult } from "lit-html";
import { facts, secret, when } from "../../shared/ui";
import { order } from "../form";
import type { DeniedPath, ProtectedPath, ProtectedPathOpened, Site } from "../model";
import type { OperationName } from "../operations";
import type { Viewer } from "../rights";
import { rows, together } from "./rows";
import type { SitePart } from "./site";

/** What the part shows: it is there for who may see any of these. */
export const PROTECTION: OperationName[] = ["protected_path.list", "denied_path.list"];

export function siteProtection(site: Site, viewer: Viewer): SitePart {
  return together(
    ...(viewer.may("protected_path.list") ? [protectedPaths(site, viewer)] : []),
    ...(viewer.may("denied_path.list") ? [deniedPaths(site, viewer)] : []),
  );
}

function protectedPaths(site: Site, { may }: Viewer): SitePart {
  return rows<ProtectedPath>({
    title: "Passwords",
    text: "Visitors of such a path, and of what is below it, need one of its logins.",
    path: `/sites/${site.id}/protected-paths`,
    heads: ["Path", "Logins", ""],
    buttons: (now) => (may("protected_path.create") ? html`<button @click=${() => protect(now)}>Protect path</button>` : nothing),
    row: (path) => html`<tr><td class="mono">${path.path}</td>
      <td>${path.logins.map(
        (login) =>
          html`<div><span class="mono">${login}</span> ${
            may("protected_path.set_login") ? html`<button @click=${() => renew(path, login)}>Reset password</button>` : nothing
          } ${
            may("protected_path.remove_login") && path.logins.length > 1
              ? html`<button class="danger" @click=${() => removeLogin(path, login)}>Remove</button>`
              : nothing
          }</div>`,
      )}</td>
      <td class="act">${may("protected_path.set_login") ? html`<button @click=${() => setLogin(path)}>Set login</button>` : nothing}
        ${may("protected_path.delete") ? html`<button class="danger" @click=${() => open(path)}>Remove protection</button>` : nothing}</td></tr>`,
    empty: "No path is protected.",
  });
}

const PASSWORD = { password: { hint: "Twelve characters at least; if left empty, one is generated and shown once" } };

function protect(site: Site): void {
  order<ProtectedPathOpened>("protected_path.create", {
    title: `Protect a path of ${site.domain} with a password`,
    action: "Protect",
    known: { id: site.id },
    wishes: { path: { placeholder: "/members" }, ...PASSWORD },
    done: (made) => shownOnce(made, made.logins[0] ?? ""),
  });
}

function setLogin(path: ProtectedPath): void {
  let login = "";
  order<ProtectedPathOpened>("protected_path.set_login", {
    title: `Set a login for ${path.path}`,
    text: "If the login exists, its password is replaced.",
    action: "Set",
    known: { id: path.id },
    fields: (values) => {
      login = values["login"] ?? "";
      return ["login", "password"];
    },
    wishes: PASSWORD,
    done: (made) => shownOnce(made, login),
  });
}

function renew(path: ProtectedPath, login: string): void {
  order<ProtectedPathOpened>("protected_path.set_login", {
    title: `Reset the password of ${login} at ${path.path}?`,
    text: "The old password stops working at once.",
    action: "Reset",
    dangerous: true,
    known: { id: path.id, login },
    fields: [],
    done: (made) => shownOnce(made, login),
  });
}

function removeLogin(path: ProtectedPath, login: string): void {
  order("protected_path.remove_login", {
    title: `Remove ${login}'s access to ${path.path}?`,
    action: "Remove",
    dangerous: true,
    known: { id: path.id, login },
    fields: [],
  });
}

function open(path: ProtectedPath): void {
  order("protected_path.delete", {
    title: `Remove password protection from ${path.path}?`,
    text: "Everybody can open it, and its logins are deleted.",
    action: "Remove",
    dangerous: true,
    known: { id: path.id },
  });
}

function shownOnce({ path, password }: ProtectedPathOpened, login: string): TemplateResult | undefined {
  if (!password) return undefined;
  return html`${facts([
    ["Path", html`<span class="mono">${path}</span>`],
    ["Login", html`<span class="mono">${login}</span>`],
  ])}<p>The password. It is shown only once.</p>${secret(password)}`;
}

function deniedPaths(site: Site, { may }: Viewer): SitePart {
  return rows<DeniedPath>({
    title: "Denied paths",
    text: "Visitors cannot open these. The site's own programs read them as before.",
    path: `/sites/${site.id}/denied-paths`,
    heads: ["Path or name", "Since", ""],
    buttons: (now) => (may("denied_path.create") ? html`<button @click=${() => deny(now)}>Deny path</button>` : nothing),
    row: (denied) => html`<tr><td class="mono">${denied.pattern}</td><td>${when(denied.created_at)}</td>
      <td class="act">${may("denied_path.delete") ? html`<button class="danger" @click=${() => allow(denied)}>Allow</button>` : nothing}</td></tr>`,
    empty: "Nothing, besides what every site hides: files whose names start with a dot.",
  });
}

function deny(site: Site): void {
  order("denied_path.create", {
    title: `Deny a path of ${site.domain}`,
    action: "Deny",
    known: { id: site.id },
    wishes: {
      pattern: {
        label: "Path or name",
        placeholder: "/private, debug.log, *.bak or /uploads/**/*.php",
        hint: "A path includes everything below it; a name or pattern matches in every folder",
      },
    },
  });
}

function allow(denied: DeniedPath): void {
  order("denied_path.delete", {
    title: `Allow ${denied.pattern} again?`,
    action: "Allow",
    dangerous: true,
    known: { id: denied.id },
  });
}
