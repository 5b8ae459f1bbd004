/** The form that creates a machine. The key makes a repeated submit the same order. */
import { html } from "lit-html";
import { api, everyOf, firstOf, failureOf } from "../../shared/api";
import type { Image, Machine, Me, Named, Node, Plan } from "../model";
import type { SecurityGroup } from "../networking";
import { go } from "../../shared/page";
import { installing, isIso, made, systems } from "./installing";
import { RESTART_POLICIES } from "./machines";
import { ask, chosen, given, note, secret, size, type Field, type Values } from "../../shared/ui";

interface Created {
  vm: Machine;
  password?: string | null;
}

export async function createMachine(me: Me): Promise<void> {
  try {
    await form(me);
  } catch (thrown) {
    const error = failureOf(thrown);
    note(error.message, true);
  }
}

async function form(me: Me): Promise<void> {
  const [images, plans, projects, groups, nodes] = await Promise.all([
    api.get<Image[]>("/images"),
    firstOf<Plan>("/plans"),
    firstOf<Named>("/projects"),
    everyOf<SecurityGroup>("/security-groups"),
    me.role === "administrator" ? firstOf<Node>("/nodes") : [],
  ]);
  const ready = made(images);
  if (!ready.length) {
    note("There is no image yet: refresh the catalogue, or upload one.", true);
    return;
  }
  const key = crypto.randomUUID();
  const initial = ready[0]?.id ?? "";
  const fromIso = (values: Values) => isIso(ready, values["image_id"] ?? initial);
  const access: Field[] = [
    {
      name: "access_mode",
      label: "Access",
      kind: "select",
      options: [
        { value: "", label: "the image's own user, with sudo" },
        { value: "root_password", label: "root, by password" },
        { value: "root_key", label: "root, by SSH key" },
      ],
    },
    {
      name: "set_password",
      label: "Password",
      kind: "password",
      autocomplete: "new-password",
      hint: "left empty, one is generated and shown once",
    },
    { name: "ssh_keys", label: "SSH keys", kind: "textarea", placeholder: "ssh-ed25519 AAAA… one a line" },
    {
      name: "user_data",
      label: "User-data",
      kind: "textarea",
      hint: "for cloud-init of the first boot: a script, or #cloud-config",
    },
  ];
  const fields: Field[] = [
    { name: "name", label: "Name", required: true, placeholder: "web-1" },
    {
      name: "image_id",
      label: "Image",
      kind: "select",
      value: initial,
      options: systems(ready),
      hint: "with an ISO, install it on its console",
    },
    {
      name: "plan_id",
      label: "Plan",
      kind: "select",
      options: plans
        .filter((plan) => plan.enabled)
        .map((plan) => ({ value: plan.id, label: `${plan.name}: ${plan.vcpus} × ${size(plan.memory_mib)}, ${plan.disk_gib} GiB` })),
    },
    ...(projects.length
      ? [
          {
            name: "project_id",
            label: "Project",
            kind: "select" as const,
            options: projects.map((project) => ({ value: project.id, label: project.name })),
          },
        ]
      : []),
    ...(nodes.length
      ? [
          {
            name: "node_id",
            label: "Node",
            kind: "select" as const,
            options: [
              { value: "", label: "automatic" },
              ...nodes.filter((node) => node.state === "online").map((node) => ({ value: node.id, label: node.name })),
            ],
          },
        ]
      : []),
    ...(groups.length
      ? [
          {
            name: "group",
            label: "Security groups",
            kind: "choices" as const,
            values: [],
            options: groups.map((group) => ({
              value: group.id,
              label: group.project_name ? `${group.name} (${group.project_name})` : group.name,
            })),
          },
        ]
      : []),
    { name: "restart_policy", label: "Restart", kind: "select", options: RESTART_POLICIES },
  ];
  ask({
    title: "Create machine",
    fields: (values) => [...fields, ...(fromIso(values) ? [] : access)],
    action: "Create",
    submit: async (values) => {
      const iso = fromIso(values);
      const keys = (values["ssh_keys"] ?? "")
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
      const password = values["set_password"];
      const joined = chosen(values, "group");
      const created = await api.post<Created>("/vms", {
        idempotency_key: key,
        name: values["name"],
        [iso ? "iso_id" : "image_id"]: values["image_id"],
        ...given(values, ["plan_id", "project_id", "node_id", "access_mode", "restart_policy", "user_data"]),
        ...(keys.length ? { ssh_keys: keys } : {}),
        ...(joined.length ? { security_group_ids: joined } : {}),
        ...(password ? { set_password: password } : keys.length || iso ? {} : { password: true }),
      });
      go(`/machines/${created.vm.id}`);
      if (iso) return installing(created.vm);
      return created.password
        ? html`<p>The password of ${created.vm.name}. It is shown only once.</p>${secret(created.password)}`
        : undefined;
    },
  });
}
