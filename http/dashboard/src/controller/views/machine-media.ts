/** A machine's CD-ROM drive: what is in it, and the dialogs that change that. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { ask, attempt, note, type Fragment } from "../../shared/ui";
import type { Image, Machine } from "../model";

export function driveFact(machine: Machine): [string, Fragment] {
  const settled = machine.status === "running" || machine.status === "stopped";
  const inside = machine.iso;
  return [
    "CD-ROM",
    html`${inside ? html`${inside.image_name}${inside.boot ? ", booted before the disk" : nothing}` : "empty"}
      ${settled ? html`<button @click=${() => void attempt(() => insert(machine))}>Insert</button>` : nothing}
      ${settled && inside ? html`<button @click=${() => eject(machine)}>Eject</button>` : nothing}`,
  ];
}

async function insert(machine: Machine): Promise<void> {
  const images = (await api.get<Image[]>("/images")).filter((image) => image.kind === "iso" && image.enabled && image.digest !== null);
  if (!images.length) {
    note("There is no ISO image to insert.", true);
    return;
  }
  ask({
    title: `Insert an ISO into the drive of ${machine.name}`,
    text: "A running guest sees it at once. It stays inserted until it is ejected.",
    fields: [
      {
        name: "image_id",
        label: "ISO image",
        kind: "select",
        value: machine.iso?.image_id ?? images[0]?.id ?? "",
        options: images.map((image) => ({ value: image.id, label: image.name })),
      },
      { name: "boot", label: "Boot it before the disk, from the machine's next start on", kind: "checkbox" },
    ],
    action: "Insert",
    submit: async (values) =>
      void (await api.post(`/vms/${machine.id}/iso`, { image_id: values["image_id"], boot: values["boot"] === "on" })),
  });
}

function eject(machine: Machine): void {
  ask({
    title: `Empty the drive of ${machine.name}`,
    text: "Even if the guest has mounted it. The machine boots its disk from its next start on.",
    action: "Eject",
    submit: async () => void (await api.delete(`/vms/${machine.id}/iso`)),
  });
}
