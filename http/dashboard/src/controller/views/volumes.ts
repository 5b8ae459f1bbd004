/** Volumes: the list of all, those of one machine, and what is done with each. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, firstOf, type Page } from "../../shared/api";
import type { Machine, Me, Volume } from "../model";
import type { Part, View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, shown, table } from "../../shared/ui";

const HEADS = ["Name", "State", "Size", "Machine", "In the guest", ""];

/** Those that the caller may see, free ones and kept disks too. */
export function volumesView(me: Me): View {
  const volumes = new Resource<Page<Volume>>((signal) => api.get("/volumes", { page_size: 200 }, signal), ["vm", "task"]);
  return {
    title: "Volumes",
    draw: () => html`
      <div class="head"><h1>Volumes</h1></div>
      <p class="quiet">More disks of machines, and the disks that were kept of deleted ones. A volume is made on its machine's page.</p>
      ${shown(volumes, (page) =>
        table(
          me.role === "customer" ? HEADS : [...HEADS.slice(0, 4), "Node", ...HEADS.slice(4)],
          page.items.map((each) => row(each, me.role !== "customer")),
          "No volumes.",
        ),
      )}`,
    dispose: () => volumes.dispose(),
  };
}

/** `machine` is what is shown of it now. */
export function machineVolumes(id: string, machine: () => Machine | null): Part {
  const volumes = new Resource<Page<Volume>>((signal) => api.get("/volumes", { vm: id, page_size: 100 }, signal), ["vm", "task"]);
  return {
    draw: () => {
      const now = machine();
      const settled = now !== null && (now.status === "running" || now.status === "stopped");
      return html`
        <div class="head"><h2>Volumes</h2><span class="gap"></span>${
          settled
            ? html`<button @click=${() => void attempt(() => attach(now))}>Attach volume</button>
                <button @click=${() => create(now)}>Create volume</button>`
            : nothing
        }</div>
        ${shown(volumes, (page) =>
          table(
            HEADS,
            page.items.map((each) => row(each, false)),
            "No volumes. One is a further disk, which outlives the machine.",
          ),
        )}`;
    },
    dispose: () => volumes.dispose(),
  };
}

function row(volume: Volume, withNode: boolean): TemplateResult {
  const kept = volume.kept_of ? html` <span class="quiet">kept</span>` : nothing;
  const busy = !["available", "in_use", "failed"].includes(volume.state);
  return html`<tr><td>${volume.name}${kept}</td><td>${badge(volume.state, volume.error)}</td><td>${volume.size_gib} GiB</td>
    <td>${volume.vm_id ? html`<a href="#/machines/${volume.vm_id}">${volume.vm_name}</a>` : (volume.project_name ?? "nobody's")}</td>
    ${withNode ? html`<td><a href="#/nodes/${volume.node_id}">${volume.node_name}</a></td>` : nothing}
    <td>${volume.vm_id ? html`<code>${volume.device}</code>` : "—"}</td>
    <td class="act">${
      busy
        ? nothing
        : html`<button @click=${() => change(volume)}>Change</button>
            ${volume.state === "failed" ? nothing : html`<button @click=${() => grow(volume)}>Grow</button>`}
            ${volume.vm_id ? html`<button @click=${() => detach(volume)}>Detach</button>` : nothing}
            ${volume.vm_id ? nothing : html`<button class="danger" @click=${() => remove(volume)}>Delete</button>`}`
    }</td></tr>`;
}

function create(machine: Machine): void {
  ask({
    title: `Create a volume for ${machine.name}`,
    text: "It is empty; the guest partitions and formats it. It stays when the machine is deleted, unless you say otherwise.",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "data" },
      { name: "size_gib", label: "Size, in GiB", kind: "number", least: 1, required: true },
      { name: "delete_with_machine", label: "Delete it with the machine", kind: "checkbox" },
    ],
    action: "Create",
    submit: async (values) =>
      void (await api.post("/volumes", {
        vm_id: machine.id,
        name: values["name"],
        size_gib: Number(values["size_gib"]),
        delete_with_machine: values["delete_with_machine"] === "on",
      })),
  });
}

async function attach(machine: Machine): Promise<void> {
  const free = await firstOf<Volume>("/volumes", { project: machine.project_id, state: "available" });
  ask({
    title: `Attach a volume to ${machine.name}`,
    text: free.length
      ? "A running guest gets it at once. A volume can be attached on its own node only."
      : "The project has no volume that is free.",
    fields: free.length
      ? [
          {
            name: "volume",
            label: "Volume",
            kind: "select",
            value: free[0]?.id ?? "",
            options: free.map((each) => ({ value: each.id, label: `${each.name}, ${each.size_gib} GiB` })),
          },
        ]
      : [],
    action: "Attach",
    submit: async (values) => void (values["volume"] && (await api.post(`/volumes/${values["volume"]}/attach`, { vm_id: machine.id }))),
  });
}

function detach(volume: Volume): void {
  ask({
    title: `Detach ${volume.name}`,
    text: "Unmount it in the guest first: what has not been written out is lost. A guest that does not release it within a minute keeps it. The machine's snapshots lose its data.",
    action: "Detach",
    dangerous: true,
    submit: async () => void (await api.post(`/volumes/${volume.id}/detach`)),
  });
}

function grow(volume: Volume): void {
  ask({
    title: `Grow ${volume.name}`,
    text: "A volume only grows. The guest enlarges its file system itself.",
    fields: [
      {
        name: "size_gib",
        label: "Size, in GiB",
        kind: "number",
        least: volume.size_gib + 1,
        value: String(volume.size_gib + 1),
        required: true,
      },
    ],
    action: "Grow",
    submit: async (values) => void (await api.post(`/volumes/${volume.id}/grow`, { size_gib: Number(values["size_gib"]) })),
  });
}

function change(volume: Volume): void {
  ask({
    title: `Change ${volume.name}`,
    text: "",
    fields: [
      { name: "name", label: "Name", value: volume.name, required: true },
      { name: "protected", label: "Keep it from being deleted", kind: "checkbox", value: volume.protected ? "on" : "" },
      {
        name: "delete_with_machine",
        label: "Delete it with the machine that has it",
        kind: "checkbox",
        value: volume.delete_with_machine ? "on" : "",
      },
    ],
    action: "Save",
    submit: async (values) =>
      void (await api.patch(`/volumes/${volume.id}`, {
        name: values["name"],
        protected: values["protected"] === "on",
        delete_with_machine: values["delete_with_machine"] === "on",
      })),
  });
}

function remove(volume: Volume): void {
  ask({
    title: `Delete ${volume.name}`,
    text: "Everything on it is lost.",
    action: "Delete",
    dangerous: true,
    typed: volume.name,
    submit: async () => void (await api.delete(`/volumes/${volume.id}`, { confirm: volume.name })),
  });
}
