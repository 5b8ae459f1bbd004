/** The machines, each with what may be done to it now. */
import { html, nothing, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { api } from "../../shared/api";
import type { Machine, Me } from "../model";
import { address, type View } from "../../shared/page";
import { ask, attempt, badge, size, when } from "../../shared/ui";
import { createMachine } from "./create";
import { chosenLabel, labels } from "./machine-marks";
import { rescueBadge } from "./machine-rescue";
import { list } from "../../shared/list";

const STATUSES = ["creating", "stopped", "starting", "running", "stopping", "rebooting", "deleting", "failed", "unknown"];

export function machinesView(me: Me): View {
  return list<Machine>({
    title: "Machines",
    path: "/vms",
    kinds: ["vm"],
    searchable: true,
    filters: [{ name: "status", label: "Status", options: STATUSES }],
    buttons: () => html`<button class="primary" @click=${() => void createMachine(me)}>Create machine</button>`,
    before: () => chosenLabel(address().query.get("label")),
    rows: (machines) => machinesTable(machines, me.role !== "customer"),
  });
}

export function machinesTable(machines: Machine[], nodes: boolean, empty = "No machines."): TemplateResult {
  if (!machines.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll"><table>
    <thead><tr><th scope="col">Name</th><th scope="col">Status</th><th scope="col">Address</th><th scope="col">Size</th>
      ${nodes ? html`<th scope="col">Node</th>` : nothing}<th scope="col">Created</th><th></th></tr></thead>
    <tbody>${repeat(
      machines,
      (machine) => machine.id,
      (machine) => html`<tr>
      <td><a href="#/machines/${machine.id}">${machine.name}</a> ${labels(machine)}</td>
      <td>${badge(machine.status, machine.status_reason)}${rescueBadge(machine)}</td>
      <td class="mono">${primary(machine)}</td>
      <td>${machine.vcpus} × ${size(machine.memory_mib)} · ${machine.disk_gib} GiB</td>
      ${nodes ? html`<td>${machine.node_name ?? "—"}</td>` : nothing}
      <td>${when(machine.created_at)}</td>
      <td class="act">${powerButtons(machine, true)}</td>
    </tr>`,
    )}</tbody>
  </table></div>`;
}

function primary(machine: Machine): string {
  return machine.addresses.find((address) => address.primary)?.ip ?? machine.addresses[0]?.ip ?? "—";
}

/** When a machine is started again that went off without an order; the first is the default. */
export const RESTART_POLICIES = [
  { value: "on_failure", label: "after a crash or a power cut" },
  { value: "always", label: "always, also when it shut itself down" },
  { value: "never", label: "never" },
];

/** What may be done in this state; in a list, only what is done daily. */
export function powerButtons(machine: Machine, short = false): TemplateResult {
  const path = `/vms/${machine.id}`;
  const on = machine.status === "running";
  const going = on || machine.status === "stopping" || machine.status === "rebooting";
  const name = machine.name;
  const simple = (action: string, verb: string) => () =>
    ask({ title: `${verb} ${name}?`, action: verb, submit: async () => void (await api.post(`${path}/${action}`)) });
  const typed = (action: string, verb: string, text: string) => () =>
    ask({
      title: `${verb} ${name}`,
      text,
      action: verb,
      dangerous: true,
      typed: name,
      submit: async () => void (await api.post(`${path}/${action}`, { confirm: name })),
    });
  return html`
    ${machine.status === "stopped" || machine.status === "failed" ? html`<button @click=${() => void attempt(() => api.post(`${path}/start`))}>Start</button>` : nothing}
    ${going ? html`<button @click=${() => openConsole(machine, "vnc")}>Console</button>` : nothing}
    ${
      short
        ? nothing
        : html`
      ${going ? html`<button @click=${() => openConsole(machine, "serial")}>Serial</button>` : nothing}
      ${
        on
          ? html`<button @click=${simple("shutdown", "Shut down")}>Shut down</button>
        <button @click=${simple("reboot", "Reboot")}>Reboot</button>`
          : nothing
      }
      ${going ? html`<button class="danger" @click=${typed("force-stop", "Force stop", "Like pulling the plug: data that is not on disk yet is lost.")}>Force stop</button>` : nothing}
      ${on ? html`<button class="danger" @click=${typed("reset", "Reset", "Like the reset button: data that is not on disk yet is lost.")}>Reset</button>` : nothing}
      ${machine.status !== "deleting" ? html`<button class="danger" @click=${() => remove(machine)}>Delete</button>` : nothing}`
    }`;
}

function remove(machine: Machine): void {
  ask({
    title: `Delete ${machine.name}`,
    text: "The machine is stopped at once, and its addresses are released.",
    fields: [
      { name: "destroy_disks", label: "Destroy its disk as well; otherwise it is retained as a volume", kind: "checkbox" },
      { name: "destroy_volumes", label: "Destroy its volumes as well; otherwise they stay", kind: "checkbox" },
    ],
    action: "Delete",
    dangerous: true,
    typed: machine.name,
    submit: async (values) =>
      void (await api.delete(`/vms/${machine.id}`, {
        confirm: machine.name,
        destroy_disks: values["destroy_disks"] === "on",
        destroy_volumes: values["destroy_volumes"] === "on",
      })),
  });
}

function openConsole(machine: Machine, kind: "vnc" | "serial"): void {
  window.open(`/console/${machine.id}?kind=${kind}`, `console-${kind}-${machine.id}`, "popup,width=1040,height=800");
}
