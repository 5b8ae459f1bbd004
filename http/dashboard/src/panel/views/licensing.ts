/** The edition of the panel and its licence: a card of the page "Server". */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, facts, shown, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import type { Licensing } from "../model";

export function licensing(): { draw(): TemplateResult; dispose(): void } {
  const state = new Resource<Licensing>((signal) => api.get("/licensing", {}, signal), ["system"]);
  const reload = () => void state.load();
  return { draw: () => html`${shown(state, (now) => card(now, reload))}`, dispose: () => state.dispose() };
}

function card(now: Licensing, reload: () => void): Fragment {
  const { license } = now;
  return html`
    <div class="head"><h2>Licence</h2><span class="gap"></span>
      ${now.can_install ? html`<button @click=${() => install(reload)}>Install licence</button>` : nothing}
      ${license.state === "none" ? nothing : html`<button class="danger" @click=${() => remove(reload)}>Remove</button>`}</div>
    ${
      license.state === "none"
        ? html`<p class="quiet">There is none, and none is needed: the ${now.edition} has no limits.</p>`
        : facts([
            ["State", badge(license.state, license.problem)],
            ["Holder", license.holder ?? "—"],
            ["Edition", license.edition ?? "—"],
            ["Ends", license.holder && !license.expires_at ? "never" : when(license.expires_at)],
            ["Installed", when(license.installed_at)],
          ])
    }
    ${license.problem ? html`<p class="failure">${license.problem}</p>` : nothing}`;
}

function install(done: () => void): void {
  order("licensing.install", { title: "Install licence", text: "The line in the file that you were given.", action: "Install", done });
}

function remove(done: () => void): void {
  order("licensing.remove", { title: "Remove the licence", text: "Nothing else changes.", action: "Remove", dangerous: true, done });
}
