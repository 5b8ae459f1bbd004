/** The images machines are made from. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Image, Me } from "../model";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, bytes, shown, size, table } from "../../shared/ui";
import { platform } from "./platform";

export function imagesView(me: Me): View {
  const images = new Resource<Image[]>((signal) => api.get("/images", {}, signal), ["image"]);
  const manager = me.role === "administrator";
  const toggle = (image: Image) =>
    void attempt(async () => {
      await api.patch(`/images/${image.id}`, { enabled: !image.enabled });
      await images.load();
    });
  return {
    title: "Images",
    draw: () => html`
      <div class="head"><h1>Images</h1><span class="gap"></span>
        ${manager ? html`<button @click=${() => void attempt(() => api.post("/images/refresh"), "Reading the publishers' checksums.")}>Refresh catalogue</button>` : nothing}</div>
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
        <td>${platform(image)}</td>
        <td>${image.size_bytes ? bytes(image.size_bytes) : "—"}</td>
        <td>${badge(!image.enabled ? "disabled" : image.digest === null ? "not refreshed" : "active")}</td>
        <td class="act">${manager ? html`<button @click=${() => toggle(image)}>${image.enabled ? "Disable" : "Enable"}</button>` : nothing}</td></tr>`,
          ),
          "No images.",
        ),
      )}`,
    dispose: () => images.dispose(),
  };
}
