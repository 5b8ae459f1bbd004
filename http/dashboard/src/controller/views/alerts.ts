/** What needs somebody's attention. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Alert, AlertMail, Me } from "../model";
import { changed, type View } from "../../shared/page";
import { attempt, badge, table, when } from "../../shared/ui";
import { list } from "../../shared/list";

const CHOICES: [AlertMail["least"], string][] = [
  ["none", "no alerts"],
  ["critical", "critical alerts"],
  ["warning", "all alerts"],
];

export function alertsView(me: Me): View {
  let mailed: AlertMail | null = null;
  const alerts = list<Alert>({
    title: "Alerts",
    path: "/alerts",
    kinds: ["alert"],
    searchable: true,
    buttons: () =>
      html`${mailed ? choice(mailed) : nothing}${me.role === "administrator" ? html`<a href="#/alert-webhooks">Webhooks</a>` : nothing}`,
    filters: [{ name: "severity", label: "Severity", options: ["critical", "warning"] }],
    rows: (all) =>
      table(
        ["Severity", "What", "Since", ""],
        all.map(
          (alert) => html`<tr>
      <td>${badge(alert.severity)}</td><td class="wide">${alert.message}</td><td>${when(alert.opened_at)}</td>
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
  const choice = ({
    least,
  }: AlertMail) => html`<label>Mail to me <select @change=${(event: Event) => choose((event.target as HTMLSelectElement).value)}>
    ${CHOICES.map(([value, label]) => html`<option value=${value} ?selected=${value === least}>${label}</option>`)}</select></label>`;
  const choose = (least: string) =>
    void attempt(async () => {
      mailed = await api.put<AlertMail>("/alerts/mail", { least });
    }, "Saved.");
  if (me.role !== "customer")
    void attempt(async () => {
      mailed = await api.get<AlertMail>("/alerts/mail");
      changed();
    });
  return alerts;
}
