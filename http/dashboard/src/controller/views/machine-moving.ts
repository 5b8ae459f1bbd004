/** A machine moves to another node: live while it runs, where that can be done, else with a restart; off with its disks. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { ask, attempt, note, type Fragment } from "../../shared/ui";
import type { Machine, Me, MigrationTarget } from "../model";

const MODES: Record<string, string> = { live: "live", restart: "with a restart", offline: "while it is off" };

export function movingButton(me: Me, machine: Machine): Fragment {
  if (me.role !== "administrator" || (machine.status !== "running" && machine.status !== "stopped")) return nothing;
  return html`<button @click=${() => void attempt(() => move(machine))}>Move</button>`;
}

async function move(machine: Machine): Promise<void> {
  const targets = await api.get<MigrationTarget[]>(`/vms/${machine.id}/migration-targets`);
  const fit = targets.filter((target) => target.mode !== null);
  if (!fit.length) {
    note(targets.map((target) => `${target.node_name}: ${target.reasons.join("; ")}`).join(". ") || "There is no other node.", true);
    return;
  }
  ask({
    title: `Move ${machine.name}`,
    text: "Its task says how far it is. A machine that moves live goes on running; sessions at its console end.",
    fields: [
      {
        name: "node_id",
        label: "Node",
        kind: "select",
        value: fit[0]?.node_id ?? "",
        options: fit.map((target) => ({
          value: target.node_id,
          label: [`${target.node_name}, ${MODES[target.mode ?? ""] ?? ""}`, ...target.reasons].join(" · "),
        })),
      },
    ],
    action: "Move",
    submit: async (values) => {
      const target = fit.find((each) => each.node_id === values["node_id"]) ?? fit[0];
      await api.post(`/vms/${machine.id}/migrate`, { node_id: target?.node_id, restart: target?.mode === "restart" });
    },
  });
}
