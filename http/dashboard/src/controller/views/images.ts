/** The images machines are made from. */
import { html, nothing } from "lit-html";
import { api, firstOf } from "../../shared/api";
import type { Image, Me, Node } from "../model";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, bytes, note, shown, size, table, type Fragment } from "../../shared/ui";
import { addImage, changePlatform, itsFile } from "./image-adding";
import { platform } from "./platform";

export function imagesView(me: Me): View {
  const images = new Resource<Image[]>((signal) => api.get("/images", {}, signal), ["image"]);
  const manager = me.role === "administrator";
  const toggle = (image: Image) =>
    void attempt(async () => {
      await api.patch(`/images/${image.id}`, { enabled: !image.enabled });
      await images.load();
    });
  const actions = (image: Image): Fragment => html`
    ${image.source === "file" && image.digest === null ? itsFile(image, () => images.load()) : nothing}
    ${image.digest !== null && image.enabled ? html`<button aria-label="Pull ${image.name} to a node" @click=${() => void bring(image)}>Pull to node</button>` : nothing}
    <button @click=${() => toggle(image)}>${image.enabled ? "Disable" : "Enable"}</button>`;
  return {
    title: "Images",
    draw: () => html`
      <div class="head"><h1>Images</h1><span class="gap"></span>
        ${
          manager
            ? html`<button @click=${() => void attempt(() => api.post("/images/refresh"), "Reading the publishers' checksums.")}>Refresh catalogue</button>
              <button class="primary" @click=${() => addImage(() => images.load())}>Create image</button>`
            : nothing
        }</div>
      ${shown(images, (all) =>
        table(
          ["Name", "Release", "Needs", "Firmware", "File", "State", ""],
          all.map(
            (image) => html`<tr>
        <td>${image.name}${image.custom ? html` <span class="quiet">custom</span>` : nothing}${
          image.kind === "disk" ? nothing : html` <span class="quiet">${image.kind === "iso" ? "ISO" : "rescue system"}</span>`
        }</td>
        <td>${image.distribution} ${image.release}</td>
        <td>${size(image.min_memory_mib)}, ${image.min_disk_gib} GiB</td>
        <td>${platform(image)} ${
          manager && image.custom && image.kind === "disk"
            ? html`<button aria-label="Change what machines of ${image.name} have" @click=${() => changePlatform(image, () => images.load())}>Change</button>`
            : nothing
        }</td>
        <td>${image.size_bytes ? bytes(image.size_bytes) : "—"}</td>
        <td>${badge(state(image))}</td>
        <td class="act">${manager ? actions(image) : nothing}</td></tr>`,
          ),
          "No images.",
        ),
      )}`,
    dispose: () => images.dispose(),
  };
}

function state(image: Image): string {
  if (!image.enabled) return "disabled";
  if (image.digest !== null) return "active";
  return image.source === "file" ? "no file yet" : "not refreshed";
}

/** So that the first machine of it on that node need not wait for its file. */
async function bring(image: Image): Promise<void> {
  await attempt(async () => {
    const nodes = await firstOf<Node>("/nodes");
    ask({
      title: `Pull ${image.name} to a node`,
      text: nodes.length ? "The node fetches and checks its file now, before the first machine needs it." : "There is no node yet.",
      fields: nodes.length
        ? [{ name: "node_id", label: "Node", kind: "select", options: nodes.map((node) => ({ value: node.id, label: node.name })) }]
        : [],
      action: nodes.length ? "Pull" : "",
      submit: async (values) => {
        await api.post(`/images/${image.id}/pull`, { node_id: values["node_id"] });
        note(`${image.name} is being fetched; its task shows the progress.`);
      },
    });
  });
}
