/** What needs somebody's attention. */
import { html } from "lit-html";
import { api } from "../api";
import type { Alert } from "../model";
import type { View } from "../page";
import { Resource } from "../resource";
import { attempt, badge, shown, table, when } from "../ui";

export function alertsView(): View {
  const alerts = new Resource<Alert[]>((signal) => api.get("/alerts", {}, signal), ["alert"]);
  const acknowledge = (alert: Alert) =>
    void attempt(async () => {
      await api.post(`/alerts/${alert.id}/ack`);
      await alerts.load();
    });
  return {
    title: "Alerts",
    draw: () => html`<h1>Alerts</h1>
      ${shown(alerts, (all) => table(["Severity", "What", "Since", ""], all.map((alert) => html`<tr>
        <td>${badge(alert.severity)}</td><td>${alert.message}</td><td>${when(alert.opened_at)}</td>
        <td class="act">${alert.acknowledged_at ? html`<span class="quiet">seen</span>` : html`<button @click=${() => acknowledge(alert)}>Acknowledge</button>`}</td></tr>`),
        "Nothing needs attention."))}`,
    dispose: () => alerts.dispose(),
  };
}
