/** A machine moves to another node: live while it runs, where that can be done, else with a restart; off with its disks. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { ask, attempt, tell, type Fragment, type Values } from "../../shared/ui";
import type { Machine, Me, MigrationTarget } from "../model";

const MODES = { live: "live", restart: "with a restart", offline: "while it is off" } as const;
const MEANS = {
  live: "Live migration: it keeps running. Console sessions end.",
  restart:
    "Its guest is shut down, and started on the other node once its disk is there. A guest that does not shut down keeps running where it is.",
  offline: "Its disks are copied, and it stays off.",
} as const;

export function movingButton(me: Me, machine: Machine): Fragment {
  if (me.role !== "administrator" || (machine.status !== "running" && machine.status !== "stopped")) return nothing;
  return html`<button @click=${() => void attempt(() => move(machine))}>Migrate</button>`;
}

/** The key makes a repeated submit the same order. */
async function move(machine: Machine): Promise<void> {
  const targets = await api.get<MigrationTarget[]>(`/vms/${machine.id}/migration-targets`);
  const fit = [...targets.filter((target) => target.mode === "live"), ...targets.filter((target) => target.mode && target.mode !== "live")];
  const unfit = targets.filter((target) => target.mode === null);
  const first = fit[0];
  if (!first) {
    tell(
      `Move ${machine.name}`,
      targets.length ? html`<p>No node can take it.</p>${reasons(unfit)}` : html`<p>There is no other node.</p>`,
    );
    return;
  }
  const key = crypto.randomUUID();
  const target = (values: Values) => fit.find((each) => each.node_id === values["node_id"]) ?? first;
  ask({
    title: `Migrate ${machine.name}`,
    fields: [
      {
        name: "node_id",
        label: "Node",
        kind: "select",
        value: first.node_id,
        options: fit.map((each) => ({ value: each.node_id, label: `${each.node_name}, ${each.mode && MODES[each.mode]}` })),
      },
    ],
    about: (values) => {
      const { mode, reasons: notLive } = target(values);
      return html`<p>${mode && MEANS[mode]}</p>
        ${notLive.length ? html`<p>It cannot move live:</p>${listed(notLive)}` : nothing}
        ${unfit.length ? html`<p>These cannot take it:</p>${reasons(unfit)}` : nothing}`;
    },
    action: "Migrate",
    submit: async (values) => {
      const { node_id, mode } = target(values);
      await api.post(`/vms/${machine.id}/migrate`, { node_id, restart: mode === "restart", idempotency_key: key });
    },
  });
}

function reasons(targets: readonly MigrationTarget[]): Fragment {
  return html`<dl>${targets.map((target) => html`<dt>${target.node_name}</dt><dd>${listed(target.reasons)}</dd>`)}</dl>`;
}

function listed(texts: readonly string[]): Fragment {
  return html`<ul>${texts.map((text) => html`<li>${text}</li>`)}</ul>`;
}
