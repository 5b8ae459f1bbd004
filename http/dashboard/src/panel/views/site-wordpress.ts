/** The WordPress of a site: a way in without a password, what it is, its plugins and themes. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { attempt, badge, facts, note, secret, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Site, WordPress, WordPressLoginLink, WordPressPassword, WordPressPlugin } from "../model";
import { perform } from "../operations";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function siteWordPress(site: Site, { may }: Viewer): SitePart {
  const found = new Resource<WordPress>((signal) => api.get(`/sites/${site.id}/wordpress`, {}, signal), ["site"]);
  const again = () => void found.load();
  return {
    draw: (now) =>
      html`${shown(
        found,
        (wordpress) => html`
      <div class="head"><h2>${wordpress.title}</h2><span class="gap"></span>
        ${may("wordpress.reset_password") ? html`<button @click=${() => newPassword(now)}>Reset password</button>` : nothing}
        ${may("wordpress.maintenance") ? html`<button @click=${() => maintain(now, !wordpress.maintenance, again)}>${wordpress.maintenance ? "End maintenance" : "Start maintenance"}</button>` : nothing}
        ${may("wordpress.login") ? html`<button class="primary" @click=${() => logIn(now)}>Log in</button>` : nothing}</div>
      ${facts([
        ["Version", html`${wordpress.version} ${newer(wordpress.update)}`],
        ["First administrator", `${wordpress.admin_login}, ${wordpress.admin_email}`],
        ["Language", wordpress.language],
        ["Visitors", wordpress.maintenance ? badge("warning", "They see a maintenance page") : "see it"],
        ["Errors", wordpress.debug ? badge("warning", "They are shown or logged (WP_DEBUG)") : "are kept from visitors"],
      ])}
      <h2>Plugins</h2>
      ${table(
        ["Plugin", "Version", "", ""],
        wordpress.plugins.map((each) => plugin(now, each, may("wordpress.activate_plugin", "wordpress.deactivate_plugin") ? again : null)),
        "It has none.",
      )}
      <h2>Themes</h2>
      ${table(
        ["Theme", "Version", ""],
        wordpress.themes.map(
          (each) => html`<tr><td>${each.name}</td><td>${each.version} ${newer(each.update)}</td>
          <td>${each.active ? badge("active") : nothing}</td></tr>`,
        ),
        "It has none.",
      )}`,
      )}`,
    dispose: () => found.dispose(),
  };
}

function newer(version: string | null): TemplateResult | typeof nothing {
  return version === null ? nothing : html`<span class="quiet">(${version} is there)</span>`;
}

/** `again`: what follows a change, where there may be one. */
function plugin(site: Site, one: WordPressPlugin, again: (() => void) | null): TemplateResult {
  const turn = () =>
    attempt(async () => {
      const known = { id: site.id, plugin: one.file };
      await perform(one.active ? "wordpress.deactivate_plugin" : "wordpress.activate_plugin", known);
      again?.();
    });
  return html`<tr><td>${one.name}</td><td>${one.version} ${newer(one.update)}</td>
    <td>${one.active ? badge("active") : badge("off")}</td>
    <td>${again ? html`<button @click=${turn}>${one.active ? "Deactivate" : "Activate"}</button>` : nothing}</td></tr>`;
}

function logIn(site: Site): void {
  order<WordPressLoginLink>("wordpress.login", {
    title: `Log in to ${site.domain}`,
    text: "Creates a link that logs in once, within a few minutes.",
    action: "Create link",
    known: { id: site.id },
    wishes: { login: { label: "As", hint: "The first administrator, if left empty" } },
    done: (link) => html`<p>It logs in as ${link.login}, once, until ${when(link.expires_at)}.</p>
      <p><a href=${link.url} target="_blank" rel="noopener noreferrer">Open the dashboard</a></p>`,
  });
}

function newPassword(site: Site): void {
  order<WordPressPassword>("wordpress.reset_password", {
    title: "Reset password",
    text: "The old password stops working at once.",
    action: "Reset",
    known: { id: site.id },
    wishes: { login: { label: "Of", hint: "The first administrator, if left empty" } },
    done: ({ login, password }) => html`<p>The password of ${login}. It is shown only once.</p>${secret(password)}`,
  });
}

function maintain(site: Site, maintenance: boolean, again: () => void): void {
  void attempt(async () => {
    await perform("wordpress.maintenance", { id: site.id, maintenance });
    note(maintenance ? "Visitors see a maintenance page." : "Visitors see it again.");
    again();
  });
}
