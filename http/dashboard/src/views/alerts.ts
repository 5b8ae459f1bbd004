/** What needs somebody's attention. */
import { html } from "lit-html";
import { api } from "../api";
import type { Alert } from "../model";
import type { View } from "../page";
import { attempt, badge, table, when } from "../ui";
import { list } from "./list";

export function alertsView(): View {
  const alerts = list<Alert>({
    title: "Alerts",
    path: "/alerts",
    kinds: ["alert"],
    searchable: true,
    filters: [{ name: "severity", label: "Severity", options: ["critical", "warning"] }],
    rows: (all) =>
      table(
        ["Severity", "What", "Since", ""],
        all.map(
          (alert) => html`<tr>
      <td>${badge(alert.severity)}</td><td>${alert.message}</td><td>${when(alert.opened_at)}</td>
      <td class="act">${alert.acknowledged_at ? html`<span class="quiet">seen</span>` : html`<button @click=${() => acknowledge(alert)}>Acknowledge</button>`}</td></tr>`,
        ),
        "Nothing needs attention.",
      ),
  });
  const acknowledge = (alert: Alert) =>
    void attempt(async () => {
      await api.post(`/alerts/${alert.id}/ack`);
      await alerts.load();
    });
  return alerts;
}
