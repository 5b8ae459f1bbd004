/** A machine is given another size, or another system, and stays the machine that it is. */
import { html, nothing } from "lit-html";
import { api, firstOf } from "../../shared/api";
import { ask, attempt, given, givenNumbers, note, secret, size, type Field, type Fragment, type Values } from "../../shared/ui";
import type { Image, Machine, Me, Plan } from "../model";
import { installing, isIso, made, systems } from "./installing";

const SIZES = ["vcpus", "memory_mib", "disk_gib"];

export function remakingButtons(me: Me, machine: Machine): Fragment {
  if (machine.status !== "running" && machine.status !== "stopped") return nothing;
  if (machine.rescue_since) return nothing;
  return html`<button @click=${() => void attempt(() => resize(me, machine))}>Resize</button>
    <button class="danger" @click=${() => void attempt(() => reinstall(machine))}>Reinstall</button>`;
}

/** Customers choose a plan; administrators and staff may give sizes as well. */
async function resize(me: Me, machine: Machine): Promise<void> {
  const plans = (await firstOf<Plan>("/plans")).filter((plan) => plan.enabled && plan.disk_gib >= machine.disk_gib);
  const sizes = me.role === "customer" ? [] : [{ value: "", label: "own sizes, with its present plan" }];
  const options = [
    ...sizes,
    ...plans.map((plan) => ({ value: plan.id, label: `${plan.name}: ${plan.vcpus} × ${size(plan.memory_mib)}, ${plan.disk_gib} GiB` })),
  ];
  if (!options.length) {
    note("No plan has a disk as large as this machine's, and a disk only grows.", true);
    return;
  }
  const initial = options.some((option) => option.value === machine.plan_id) ? (machine.plan_id ?? "") : (options[0]?.value ?? "");
  const own: Field[] = [
    { name: "vcpus", label: "Processors", kind: "number", least: 1, value: String(machine.vcpus), required: true },
    { name: "memory_mib", label: "Memory, in MiB", kind: "number", least: 1, value: String(machine.memory_mib), required: true },
    {
      name: "disk_gib",
      label: "Disk, in GiB",
      kind: "number",
      least: machine.disk_gib,
      value: String(machine.disk_gib),
      required: true,
      hint: "it only grows",
    },
  ];
  const restart: Field = {
    name: "reboot",
    label: "Shut it down and start it again, for other processors or memory",
    kind: "checkbox",
  };
  const plan = (values: Values) => values["plan_id"] ?? initial;
  ask({
    title: `Resize ${machine.name}`,
    text:
      machine.status === "running"
        ? "A larger disk is available at once. Processors and memory need a restart: the guest is shut down; if it does not shut down within 90 seconds, it keeps running, unchanged."
        : "The disk can only grow. The guest gets the new size at its next start.",
    fields: (values) => [
      { name: "plan_id", label: "Plan", kind: "select", value: initial, options },
      ...(plan(values) ? [] : own),
      ...(machine.status === "running" ? [restart] : []),
    ],
    action: "Resize",
    submit: async (values) =>
      void (await api.post(`/vms/${machine.id}/resize`, {
        ...(plan(values) ? { plan_id: plan(values) } : givenNumbers(values, SIZES)),
        reboot: values["reboot"] === "on",
      })),
  });
}

interface Reinstalled {
  user: string;
  password: string | null;
}

/** The key makes a repeated submit the same order. */
async function reinstall(machine: Machine): Promise<void> {
  const all = await api.get<Image[]>("/images");
  const images = made(all).filter((image) => image.id !== machine.image_id);
  const fromIso = (values: Values) => isIso(all, values["image_id"] || machine.image_id);
  const key = crypto.randomUUID();
  const access: Field[] = [
    { name: "password", label: "Generate a password, and show it once", kind: "checkbox", value: "on" },
    { name: "set_password", label: "Password of your own", kind: "password", autocomplete: "new-password" },
    {
      name: "ssh_keys",
      label: "SSH keys",
      kind: "textarea",
      placeholder: "ssh-ed25519 AAAA… one a line",
      hint: "without keys and a password, it keeps its present keys",
    },
    {
      name: "user_data",
      label: "User-data",
      kind: "textarea",
      hint: "for cloud-init of the first boot: a script, or #cloud-config",
    },
  ];
  ask({
    title: `Reinstall ${machine.name}`,
    text: "Everything on its disk is lost, with its snapshots and the data of its UEFI and TPM. Its name, addresses, size and groups stay.",
    fields: (values) => [
      {
        name: "image_id",
        label: "Image",
        kind: "select",
        value: "",
        options: [{ value: "", label: `${machine.image_name}, its present version` }, ...systems(images)],
        hint: "with an ISO, install it on its console",
      },
      ...(fromIso(values) ? [] : access),
    ],
    action: "Reinstall",
    dangerous: true,
    typed: machine.name,
    submit: async (values) => {
      const iso = fromIso(values);
      const wanted = values["image_id"] || undefined;
      const keys = (values["ssh_keys"] ?? "")
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      const chosen = values["set_password"];
      const { user, password } = await api.post<Reinstalled>(`/vms/${machine.id}/reinstall`, {
        confirm: machine.name,
        idempotency_key: key,
        ...(wanted ? { [iso ? "iso_id" : "image_id"]: wanted } : {}),
        ...given(values, ["user_data"]),
        ...(keys.length ? { ssh_keys: keys } : {}),
        ...(chosen ? { set_password: chosen } : values["password"] === "on" ? { password: true } : {}),
      });
      if (iso) return installing(machine);
      return password ? html`<p>The password of ${user} in the new system. It is shown only once.</p>${secret(password)}` : undefined;
    },
  });
}
