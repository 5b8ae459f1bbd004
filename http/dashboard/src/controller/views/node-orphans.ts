/** Machines of a node that host and records do not agree about, and deciding which of the two is right. */
import { html } from "lit-html";
import { api, firstOf } from "../../shared/api";
import type { Image, Named, Orphan } from "../model";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, badge, chosen, failure, given, size, table, type Fragment } from "../../shared/ui";

const WHAT = {
  unknown: "The host has it, but there is no record.",
  missing: "There is a record, but the host does not have it.",
  differing: "The host has other addresses for it, or its creation was in progress.",
} as const;
const ADOPTED = {
  unknown: "A record is created from the host's data.",
  missing: "The record stays: the machine is built again from its disks, if they still exist.",
  differing: "The record takes the host's data.",
} as const;
const DISCARDED = {
  unknown: "The machine is deleted from its host.",
  missing: "The record is deleted, and its addresses become free.",
  differing: "The host gets the record's data.",
} as const;

export function nodeOrphans(id: string): Part {
  const orphans = new Resource<Orphan[]>((signal) => api.get("/orphans", {}, signal), ["node", "vm", "alert"]);
  const reload = () => orphans.load();
  const rows = (found: Orphan[]) =>
    found.map(
      (orphan) => html`<tr>
      <td>${nameOf(orphan)}</td><td>${badge(orphan.kind)}</td><td class="wide">${WHAT[orphan.kind]}</td>
      <td>${orphan.state ? badge(orphan.state) : "—"}</td><td>${sizes(orphan)}</td><td>${orphan.addresses?.join(", ") || "—"}</td>
      <td class="act"><button @click=${() => void adopt(orphan, reload)}>Adopt</button>
        <button class="danger" @click=${() => discard(orphan, reload)}>Discard</button></td></tr>`,
    );
  return {
    draw: () => {
      const found = (orphans.value ?? []).filter((orphan) => orphan.node.id === id);
      if (!found.length) return html`${failure(orphans.error)}`;
      return html`<h2>Machines to decide about</h2>
        ${failure(orphans.error)}
        ${table(["Machine", "Kind", "", "State", "Size", "Addresses", ""], rows(found), "")}`;
    },
    dispose: () => orphans.dispose(),
  };
}

async function adopt(orphan: Orphan, done: () => Promise<void>): Promise<void> {
  const unknown = orphan.kind === "unknown";
  const fields = unknown ? await fieldsOfUnknown() : [];
  ask({
    title: `Adopt ${nameOf(orphan)}`,
    text: ADOPTED[orphan.kind],
    fields,
    action: "Adopt",
    submit: async (values) => {
      await api.post(`/orphans/${orphan.id}/adopt`, {
        ...given(values, ["project_id", "name", "image_id"]),
        ...groups(chosen(values, "group_ids")),
      });
      await done();
    },
  });
}

async function fieldsOfUnknown() {
  const [projects, images, rules] = await Promise.all([
    firstOf<Named>("/projects"),
    api.get<Image[]>("/images"),
    firstOf<Named>("/security-groups"),
  ]);
  const options = (all: Named[]) => all.map((one) => ({ value: one.id, label: one.name }));
  return [
    { name: "project_id", label: "Project", kind: "select" as const, options: options(projects) },
    { name: "name", label: "Name", placeholder: "as on the host" },
    {
      name: "image_id",
      label: "Image of the machine",
      kind: "select" as const,
      options: [{ value: "", label: "by its checksum" }, ...options(images.filter((image) => image.kind === "disk"))],
    },
    ...(rules.length
      ? [
          {
            name: "group_ids",
            label: "Security groups",
            kind: "choices" as const,
            options: options(rules),
            hint: "Where its host filters its traffic.",
          },
        ]
      : []),
  ];
}

function discard(orphan: Orphan, done: () => Promise<void>): void {
  const deletes = orphan.kind !== "differing";
  ask({
    title: `Discard ${nameOf(orphan)}`,
    text: DISCARDED[orphan.kind],
    ...(orphan.kind === "unknown"
      ? {
          fields: [{ name: "destroy_disks", label: "Destroy its disks", kind: "checkbox" as const, hint: "Otherwise they are retained." }],
        }
      : {}),
    action: "Discard",
    dangerous: true,
    ...(deletes ? { typed: nameOf(orphan) } : {}),
    submit: async (values) => {
      await api.post(`/orphans/${orphan.id}/discard`, { destroy_disks: values["destroy_disks"] === "on" });
      await done();
    },
  });
}

function nameOf(orphan: Orphan): string {
  return orphan.name ?? orphan.id;
}

function sizes(orphan: Orphan): Fragment {
  const parts = [
    orphan.vcpus === null ? "" : `${orphan.vcpus} vCPU`,
    orphan.memory_mib === null ? "" : size(orphan.memory_mib),
    ...(orphan.disk_gib ?? []).map((disk) => size(disk * 1024)),
  ];
  return parts.filter(Boolean).join(", ") || "—";
}

function groups(ids: string[]): { group_ids?: string[] } {
  return ids.length ? { group_ids: ids } : {};
}
