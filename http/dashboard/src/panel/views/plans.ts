/** Plans: what a provider sells, and what each allows. */
import { html } from "lit-html";
import { list } from "../../shared/list";
import type { View } from "../../shared/page";
import { size, table } from "../../shared/ui";
import { order, type Wish } from "../form";
import type { Plan } from "../model";

const FIELDS = [
  "name",
  "sites",
  "databases",
  "disk_mib",
  "traffic_mib",
  "cpu_percent",
  "memory_mib",
  "processes",
  "shell",
  "mails_per_hour",
  "mails_per_day",
  "default_backups",
];
const WISHES: Record<string, Wish> = {
  sites: { label: "Sites" },
  databases: { label: "Databases" },
  disk_mib: { label: "Disk, in MiB" },
  traffic_mib: { label: "Traffic a month, in MiB" },
  cpu_percent: { label: "Processor of each site, in percent of a core" },
  memory_mib: { label: "Memory of each site, in MiB" },
  processes: { label: "Processes of each site" },
  shell: { label: "Shells for logins of its sites" },
  mails_per_hour: { label: "Mails of each site in an hour (empty: as the settings of the server say)" },
  mails_per_day: { label: "Mails of each site in a day (empty: as the settings of the server say)" },
  default_backups: { label: "Backups of new sites (empty: as the settings of the server say)" },
};
const TEXT = "Empty fields are unlimited.";

export function plansView(): View {
  return list<Plan>({
    title: "Plans",
    path: "/plans",
    kinds: ["person"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${add}>Create plan</button>`,
    rows: (plans) =>
      table(
        ["Plan", "Sites", "Databases", "Disk", "Traffic a month", "Each site's memory", "Customers", ""],
        plans.map(
          (plan) => html`<tr><td><b>${plan.name}</b></td><td>${plan.sites ?? "any"}</td><td>${plan.databases ?? "any"}</td>
          <td>${mebibytes(plan.disk_mib)}</td><td>${mebibytes(plan.traffic_mib)}</td><td>${mebibytes(plan.memory_mib)}</td>
          <td>${plan.accounts}</td>
          <td class="act"><button @click=${() => change(plan)}>Change</button>
            <button class="danger" ?disabled=${plan.accounts > 0} title=${plan.accounts ? "Accounts have this plan" : ""} @click=${() => remove(plan)}>Delete</button></td></tr>`,
        ),
        "No plans. A plan says how much of everything a customer may have.",
      ),
  });
}

export function mebibytes(amount: number | null | undefined): string {
  return amount == null ? "any" : size(amount);
}

function add(): void {
  order("plan.create", { title: "Create plan", text: TEXT, action: "Create", wide: true, fields: FIELDS, wishes: WISHES });
}

function change(plan: Plan): void {
  order("plan.update", {
    title: `Change ${plan.name}`,
    text: `${TEXT} It counts at once for everybody who has the plan; what exceeds it stays, but nothing can be added.`,
    action: "Save",
    wide: true,
    known: { id: plan.id },
    initial: plan,
    fields: FIELDS,
    wishes: WISHES,
  });
}

function remove(plan: Plan): void {
  order("plan.delete", {
    title: `Delete ${plan.name}?`,
    text: "Nobody has it.",
    action: "Delete",
    dangerous: true,
    known: { id: plan.id },
  });
}
