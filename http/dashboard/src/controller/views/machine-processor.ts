/** The processor model that a machine's guest sees, and the dialog in which an administrator changes it. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { ask, type Fragment } from "../../shared/ui";
import type { Machine, Me } from "../model";

const MODES = [
  { value: "default", label: "default: the node's default" },
  { value: "host-model", label: "host-model: a named model near the host's" },
  { value: "host-passthrough", label: "host-passthrough: the host's own" },
  { value: "maximum", label: "maximum: all features of the hypervisor" },
  { value: "baseline", label: "baseline: x86-64-v2, on any host" },
];

export function processorFact(me: Me, machine: Machine): [string, Fragment] {
  const { mode, next_mode } = machine.facts.cpu;
  const settled = machine.status === "running" || machine.status === "stopped";
  return [
    "Processor",
    html`${mode}${next_mode ? html`, <strong>${next_mode}</strong> once it was stopped and started` : nothing}
      ${me.role === "administrator" && settled ? html`<button @click=${() => choose(machine)}>Change</button>` : nothing}`,
  ];
}

/** The key makes a repeated submit the same order. */
function choose(machine: Machine): void {
  const { mode, next_mode } = machine.facts.cpu;
  const key = crypto.randomUUID();
  const runs = machine.status === "running";
  ask({
    title: `Processor of ${machine.name}`,
    text: runs
      ? "The guest keeps its processor until it is stopped and started. A restart shuts it down first; a guest that does not shut down within three minutes keeps running, unchanged."
      : "The guest has it when it is started.",
    fields: [
      { name: "cpu_mode", label: "Processor", kind: "select", value: next_mode ?? mode, options: MODES },
      ...(runs ? [{ name: "restart", label: "Shut it down and start it again now", kind: "checkbox" } as const] : []),
    ],
    action: "Change",
    submit: async (values) =>
      void (await api.post(`/vms/${machine.id}/cpu`, {
        cpu_mode: values["cpu_mode"],
        restart: values["restart"] === "on",
        idempotency_key: key,
      })),
  });
}
