/** The transfer of each machine in a month, with its allowance. A customer sees their own machines. */
import { html, nothing } from "lit-html";
import type { TrafficPage, TrafficRow } from "../networking";
import type { View } from "../../shared/page";
import { badge, bytes, facts, table } from "../../shared/ui";
import { list } from "../../shared/list";
import { allowance, decisionsTable, READING_MILLISECONDS } from "./machine-traffic";

export function trafficView(): View {
  const view = list<TrafficRow, TrafficPage>({
    title: "Traffic",
    path: "/traffic",
    kinds: ["activity"],
    searchable: true,
    filters: [{ name: "period", label: "Month", options: (page) => page?.periods ?? [], none: "this one" }],
    before: (page) => html`${facts([
      ["Month (UTC)", page.period],
      ["Received", bytes(page.received_bytes)],
      ["Sent", bytes(page.sent_bytes)],
    ])}
      <h2>Machines</h2>`,
    rows: (rows) =>
      table(
        ["Machine", "Plan", "Received", "Sent", "Counted", "", "Readings"],
        rows.map(
          (row) => html`<tr>
        <td>${row.deleted_at ? html`${row.vm_name} <span class="quiet">deleted</span>` : html`<a href="#/machines/${row.vm_id}">${row.vm_name}</a>`}</td><td>${row.plan ?? "—"}</td>
        <td>${bytes(row.received_bytes)}</td><td>${bytes(row.sent_bytes)}</td><td class="usage">${allowance(row)}</td>
        <td>${row.state === "exceeded" ? badge(row.state) : nothing}</td>
        <td class="quiet" title="The figures are a floor: what was sent between the last reading and a restart was not seen.">
          ${row.samples.toLocaleString()}${row.resets ? `, reset ${row.resets}×` : ""}</td></tr>`,
        ),
        "No machine of that month.",
      ),
    after: (page) => html`<h2>Latest decisions</h2>${decisionsTable(page.decisions, true)}`,
  });
  const timer = setInterval(() => void view.load(), READING_MILLISECONDS);
  return {
    ...view,
    dispose: () => {
      clearInterval(timer);
      view.dispose?.();
    },
  };
}
