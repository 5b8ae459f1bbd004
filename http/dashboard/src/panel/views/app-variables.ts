/** What an application finds in its environment: its names, and a form for a value that is never shown again. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { ask, shown, table, when } from "../../shared/ui";
import type { AppVariable, Site } from "../model";
import { perform } from "../operations";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function appVariables(site: Site, { may }: Viewer): SitePart {
  const variables = new Resource<AppVariable[]>((signal) => api.get(`/sites/${site.id}/env`, {}, signal), ["site"]);
  const put = async (names: readonly string[], changed: Record<string, string> = {}) => {
    const kept = Object.fromEntries(names.map((name) => [name, null]));
    await perform("app.env_set", { id: site.id, variables: { ...kept, ...changed } });
    await variables.load();
  };
  return {
    draw: () =>
      html`${shown(variables, (all) => {
        const names = all.map(({ name }) => name);
        return html`
      <div class="head"><h2>Environment</h2><span class="gap"></span>
        ${may("app.env_set") ? html`<button @click=${() => set(names, put)}>Set variable</button>` : nothing}</div>
      <p class="quiet">Values are never shown again. What was changed is there from the next start on.</p>
      ${table(
        ["Name", "Set", ""],
        all.map(
          ({ name, set_at }) => html`<tr><td class="mono">${name}</td><td>${when(set_at)}</td>
            <td class="act">${may("app.env_set") ? html`<button class="danger" @click=${() => remove(name, names, put)}>Remove</button>` : nothing}</td></tr>`,
        ),
        "No variables yet.",
      )}`;
      })}`,
    dispose: () => variables.dispose(),
  };
}

type Put = (names: readonly string[], changed?: Record<string, string>) => Promise<void>;

function set(names: readonly string[], put: Put): void {
  ask({
    title: "Set variable",
    text: "One that is there already gets the new value.",
    action: "Set",
    fields: [
      { name: "name", label: "Variable", required: true, placeholder: "DATABASE_URL", autocomplete: "off" },
      { name: "value", label: "Value", kind: "password", autocomplete: "new-password" },
    ],
    submit: async ({ name = "", value = "" }) => put(names, { [name]: value }),
  });
}

function remove(name: string, names: readonly string[], put: Put): void {
  ask({
    title: `Remove ${name}?`,
    text: "Its value cannot be had back. A release that runs keeps it.",
    action: "Remove",
    dangerous: true,
    submit: async () => put(names.filter((each) => each !== name)),
  });
}
