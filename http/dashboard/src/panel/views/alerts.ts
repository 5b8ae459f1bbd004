/** Open alerts as a table: what needs attention until it has ended, and the button that says that somebody has seen it. */
import { html, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { attempt, badge, table, when } from "../../shared/ui";
import type { Alert } from "../model";

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
      <td class="act">${alert.acknowledged_at ? html`<span class="quiet">seen</span>` : html`<button @click=${() => seen(alert)}>Seen</button>`}</td></tr>`,
    ),
    "Nothing needs attention.",
  );
}
