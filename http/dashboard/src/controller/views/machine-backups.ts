/** A machine's backups: what there is, one more for staff, and the way back. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, bytes, shown, table, when } from "../../shared/ui";
import type { Backup, Machine, Me } from "../model";

/** `machine` is what is shown of it now. */
export function machineBackups(me: Me, id: string, machine: () => Machine | null): Part {
  const backups = new Resource<Backup[]>((signal) => api.get(`/vms/${id}/backups`, {}, signal), ["vm", "task"]);
  const staff = me.role !== "customer";
  return {
    draw: () => {
      const now = machine();
      const settled = now !== null && (now.status === "running" || now.status === "stopped");
      return html`
        <div class="head"><h2>Backups</h2><span class="gap"></span>${
          settled && staff ? html`<button @click=${() => backUp(now)}>Back up now</button>` : nothing
        }</div>
        ${shown(backups, (all) =>
          table(
            ["Completed", "Size", "File systems", "Kept at", ""],
            all.map((each) => row(settled ? now : null, each)),
            "No backups. Plans say when machines are backed up.",
          ),
        )}`;
    },
    dispose: () => backups.dispose(),
  };
}

function row(machine: Machine | null, backup: Backup): TemplateResult {
  const place = backup.target_name ?? backup.node_name;
  return html`<tr><td>${when(backup.completed_at)}</td><td>${bytes(backup.size_bytes)}</td>
    <td>${backup.frozen ? "frozen" : "not frozen"}</td>
    <td>${backup.elsewhere ? `${place ?? "another node"}, which the machine has left` : (place ?? "the provider")}</td>
    <td class="act">${machine ? html`<a class="button" href="#/machines/${machine.id}/backups/${backup.id}/files">Files</a> ` : nothing}${machine?.status === "stopped" ? html`<button @click=${() => restore(machine, backup)}>Restore</button>` : nothing}
</td></tr>`;
}

function backUp(machine: Machine): void {
  ask({
    title: `Back up ${machine.name}`,
    text: "Its disks are copied while it runs. Until then it accepts no other order except a forced stop, which ends the backup.",
    action: "Back up",
    submit: async () => void (await api.post(`/vms/${machine.id}/backups`)),
  });
}

function restore(machine: Machine, backup: Backup): void {
  ask({
    title: "Restore this backup",
    text: "The present content of the machine's disks is lost, and its snapshots with it.",
    action: "Restore",
    dangerous: true,
    typed: machine.name,
    submit: async () => void (await api.post(`/vms/${machine.id}/backups/${backup.id}/restore`, { confirm: machine.name })),
  });
}
