/** Open alerts as a table: what needs attention until it has ended, and the button that says that somebody has seen it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, everyOf } from "../../shared/api";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, shown, table, when } from "../../shared/ui";
import type { Alert } from "../model";

/** Those of the caller's open alerts that are `wanted`, beneath a heading; nothing where there is none. */
export function openAlerts(wanted: (alert: Alert) => boolean = () => true): Part {
  const alerts = new Resource<Alert[]>(async () => (await everyOf<Alert>("/alerts")).filter(wanted), ["alert"]);
  return {
    draw: () =>
      alerts.value?.length || alerts.error
        ? html`<h2>Alerts</h2>${shown(alerts, (open) => alertsTable(open, () => alerts.load()))}`
        : html`${nothing}`,
    dispose: () => alerts.dispose(),
  };
}

/** `reload` asks for the alerts again, once one was acknowledged. */
export function alertsTable(alerts: Alert[], reload: () => Promise<void>): TemplateResult {
  const seen = (alert: Alert) =>
    void attempt(async () => {
      await api.post(`/alerts/${alert.id}/ack`);
      await reload();
    });
  return table(
    ["Severity", "What", "Since", ""],
    alerts.map(
      (alert) => html`<tr><td>${badge(alert.severity)}</td><td class="text">${alert.message}</td><td>${when(alert.opened_at)}</td>
      <td class="act">${alert.acknowledged_at ? html`<span class="quiet">seen</span>` : html`<button @click=${() => seen(alert)}>Acknowledge</button>`}</td></tr>`,
    ),
    "Nothing needs attention.",
  );
}
