/** Who did what, newest first. */
import { html, nothing } from "lit-html";
import type { AuditEntry, Me } from "../model";
import type { View } from "../../shared/page";
import { badge, table, when } from "../../shared/ui";
import { auditButtons } from "../../shared/audit";
import { list } from "../../shared/list";

export function activityView(me: Me): View {
  return list<AuditEntry>({
    title: "Activity",
    path: "/activity",
    kinds: ["activity"],
    searchable: true,
    buttons: () => (me.role === "administrator" ? auditButtons() : nothing),
    rows: (entries) =>
      table(
        ["When", "Who", "What", "Of", "Outcome"],
        entries.map(
          (entry) => html`<tr>
      <td>${when(entry.at)}</td><td>${entry.actor} <span class="quiet">${entry.via}</span></td><td>${entry.operation}</td>
      <td>${entry.target_name ?? html`${entry.target_kind} <span class="mono quiet">${entry.target_id?.slice(0, 8)}</span>`}</td><td>${entry.outcome === "ok" ? nothing : badge(entry.outcome)}</td></tr>`,
        ),
        "Nothing yet.",
      ),
  });
}
