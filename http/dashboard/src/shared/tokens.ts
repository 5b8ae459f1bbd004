/** The caller's own API tokens, or for an administrator another person's. */
import { html, nothing } from "lit-html";
import { api, type Page } from "./api";
import type { ApiToken as Token } from "./generated";
import type { View } from "./page";
import { Resource } from "./resource";
import { ask, chosen, given, secret, shown, table, when } from "./ui";

/** `scopes`: what a token may be narrowed to; `several` where it may have more than one of them. */
export function tokensView(scopes: { value: string; label: string }[], person?: string, several = false): View {
  const whose = person ? { user: person } : {};
  const tokens = new Resource<Page<Token>>((signal) => api.get("/tokens", { page_size: 200, ...whose }, signal), ["activity"]);
  const add = () =>
    ask({
      title: "Create API token",
      fields: [
        { name: "name", label: "What it is for", required: true },
        several
          ? { name: "scopes", label: "May", kind: "choices", options: scopes, hint: "None: everything you may" }
          : { name: "scope", label: "May", kind: "select", options: [...scopes, { value: "", label: "everything you may" }] },
      ],
      action: "Create",
      submit: async (values) => {
        const narrowed = several ? chosen(values, "scopes") : given(values, ["scope"])["scope"];
        const made = await api.post<{ token: string }>("/tokens", {
          name: values["name"],
          ...(narrowed?.length ? { scopes: [narrowed].flat() } : {}),
        });
        await tokens.load();
        return html`<p>The token. It is shown only once.</p>${secret(made.token)}`;
      },
    });
  const revoke = (token: Token) =>
    ask({
      title: `Revoke ${token.name}?`,
      text: "Programs that use it are refused at once, and consoles opened with it are closed.",
      action: "Revoke",
      dangerous: true,
      submit: async () => {
        await api.delete(`/tokens/${token.id}`);
        await tokens.load();
      },
    });
  return {
    title: person ? "Their API tokens" : "API tokens",
    draw: () => html`
      <div class="head"><h1>${person ? "Their API tokens" : "API tokens"}</h1><span class="gap"></span>
        ${person ? nothing : html`<button class="primary" @click=${add}>Create token</button>`}</div>
      ${shown(tokens, (page) =>
        table(
          ["Name", "Ends in", "May", "Created", "Used", ""],
          page.items.map(
            (token) => html`<tr>
        <td>${token.name}</td><td class="mono">…${token.last_four}</td><td>${token.scopes?.join(", ") ?? "everything its owner may"}</td>
        <td>${when(token.created_at)}</td><td>${when(token.last_used_at)}</td>
        <td class="act"><button class="danger" @click=${() => revoke(token)}>Revoke</button></td></tr>`,
          ),
          "No tokens.",
        ),
      )}`,
    dispose: () => tokens.dispose(),
  };
}
