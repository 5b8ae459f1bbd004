/** Health of the server: what each check says, and what changed in the last 30 days. */
import { html, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, shown, table, when } from "../../shared/ui";
import type { Health, HealthCheck, HealthEvent } from "../model";

export function healthView(): View {
  const state = new Resource<Health>((signal) => api.get("/health", { events: true }, signal), ["alert", "system"]);
  return {
    title: "Health",
    draw: () => html`
      <div class="head"><h1>Health</h1></div>
      ${shown(
        state,
        (now) => html`
          ${table(["Check", "", "Seen last", "At", "Since"], now.checks.map(check), "It is looked at for the first time a minute after the panel has started.")}
          <div class="head"><h2>What changed in the last 30 days</h2></div>
          ${table(["When", "Check", "From", "To", ""], (now.events ?? []).map(event), "Nothing.")}`,
      )}`,
    dispose: () => state.dispose(),
  };
}

function check(one: HealthCheck): TemplateResult {
  return html`<tr><td>${one.name}</td><td>${badge(one.status, one.message)}</td><td>${one.message}</td>
    <td>${when(one.checked_at)}</td><td>${when(one.since)}</td></tr>`;
}

function event(one: HealthEvent): TemplateResult {
  return html`<tr><td>${when(one.at)}</td><td>${one.check}</td><td>${badge(one.before)}</td><td>${badge(one.status)}</td>
    <td>${one.message}</td></tr>`;
}
