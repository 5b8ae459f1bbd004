/** A machine's snapshots: what there is, one more, and the way back. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, badge, shown, table, when } from "../../shared/ui";
import type { Machine, Snapshot } from "../model";

/** `machine` is what is shown of it now. */
export function machineSnapshots(id: string, machine: () => Machine | null): Part {
  const snapshots = new Resource<Snapshot[]>((signal) => api.get(`/vms/${id}/snapshots`, {}, signal), ["vm"]);
  return {
    draw: () => {
      const now = machine();
      const settled = now !== null && (now.status === "running" || now.status === "stopped");
      return html`
        <div class="head"><h2>Snapshots</h2><span class="gap"></span>${settled ? html`<button @click=${() => take(now)}>Take snapshot</button>` : nothing}</div>
        ${shown(snapshots, (all) =>
          table(
            ["Name", "State", "Taken", "File systems", "Restored", ""],
            all.map((each) => row(settled ? now : null, each)),
            "No snapshots. A snapshot keeps the present content of the disks, on the same node.",
          ),
        )}`;
    },
    dispose: () => snapshots.dispose(),
  };
}

function row(machine: Machine | null, snapshot: Snapshot): TemplateResult {
  const whole = snapshot.state === "ready";
  return html`<tr><td>${snapshot.name}</td><td>${badge(snapshot.state, snapshot.error)}</td><td>${when(snapshot.taken_at)}</td>
    <td>${snapshot.frozen === null ? "—" : snapshot.frozen ? "frozen" : "not frozen"}</td><td>${when(snapshot.restored_at)}</td>
    <td class="act">${
      machine && whole && machine.status === "stopped" ? html`<button @click=${() => restore(machine, snapshot)}>Restore</button>` : nothing
    }
      ${machine && (whole || snapshot.state === "failed") ? html`<button class="danger" @click=${() => remove(machine, snapshot)}>Delete</button>` : nothing}</td></tr>`;
}

function take(machine: Machine): void {
  ask({
    title: `Take snapshot of ${machine.name}`,
    text: "It has the disks, not the memory. It stays on the machine's node, and is lost when the machine is reinstalled or restored from a backup.",
    fields: [{ name: "name", label: "Name", required: true, placeholder: "before-upgrade" }],
    action: "Take",
    submit: async (values) => void (await api.post(`/vms/${machine.id}/snapshots`, { name: values["name"] })),
  });
}

function restore(machine: Machine, snapshot: Snapshot): void {
  ask({
    title: `Restore ${snapshot.name}`,
    text: "The present content of the machine's disks is lost. The snapshots and the size of the disk stay.",
    action: "Restore",
    dangerous: true,
    typed: machine.name,
    submit: async () => void (await api.post(`/vms/${machine.id}/snapshots/${snapshot.id}/restore`, { confirm: machine.name })),
  });
}

function remove(machine: Machine, snapshot: Snapshot): void {
  ask({
    title: `Delete snapshot ${snapshot.name}`,
    text: "The machine's disks stay as they are.",
    action: "Delete",
    dangerous: true,
    submit: async () => void (await api.delete(`/vms/${machine.id}/snapshots/${snapshot.id}`)),
  });
}
