/** The rescue of a machine: a small system from memory, with its disks attached, until it is ended. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { ask, badge, secret, when, type Fragment } from "../../shared/ui";
import type { Machine } from "../model";

const FORCE = "Force it off instead of shutting it down";

export function rescueButton(machine: Machine): Fragment {
  if (machine.status !== "running" && machine.status !== "stopped") return nothing;
  return machine.rescue_since
    ? html`<button @click=${() => end(machine)}>End rescue</button>`
    : html`<button @click=${() => start(machine)}>Rescue</button>`;
}

export function rescueBadge(machine: Machine): Fragment {
  return machine.rescue_since ? badge("in rescue", "It boots the rescue system instead of its own disk.") : nothing;
}

export function rescueNote(machine: Machine): Fragment {
  if (!machine.rescue_since) return nothing;
  return html`<p class="quiet">In rescue since ${when(machine.rescue_since)}: it boots the rescue system, with its disks attached and not
    mounted, until the rescue is ended. Sign in as root by SSH, at ${machine.primary_ip ?? "its address"}, or at a console.</p>`;
}

/** The key makes a repeated submit the same order. */
function start(machine: Machine): void {
  const key = crypto.randomUUID();
  ask({
    title: `Put ${machine.name} into rescue`,
    text: "It boots a small system from memory, with its disks attached and not mounted, its own addresses and firewall. A guest that does not shut down within 90 seconds is left running.",
    fields: [
      { name: "force", label: FORCE, kind: "checkbox" },
      {
        name: "ssh_keys",
        label: "SSH keys",
        kind: "textarea",
        placeholder: "ssh-ed25519 AAAA… one a line",
        hint: "by default those that the machine was created with; a password is generated and shown once",
      },
    ],
    action: "Start rescue",
    submit: async (values) => {
      const keys = (values["ssh_keys"] ?? "").split("\n").map((line) => line.trim());
      const { user, password } = await api.post<{ user: string; password: string | null }>(`/vms/${machine.id}/rescue`, {
        force: values["force"] === "on",
        ssh_keys: keys.filter(Boolean),
        idempotency_key: key,
      });
      return password ? html`<p>The password of ${user} in the rescue system. It is shown only once.</p>${secret(password)}` : undefined;
    },
  });
}

function end(machine: Machine): void {
  ask({
    title: `End the rescue of ${machine.name}`,
    text: "The rescue system is shut down, which unmounts its file systems, and the machine boots its own disk again.",
    fields: [{ name: "force", label: FORCE, kind: "checkbox" }],
    action: "End rescue",
    submit: async (values) => void (await api.post(`/vms/${machine.id}/rescue/end`, { force: values["force"] === "on" })),
  });
}
