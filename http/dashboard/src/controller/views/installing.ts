/** What machines are made from: images, and ISOs, from which their owner installs them on an empty disk. */
import { html } from "lit-html";
import type { Fragment } from "../../shared/ui";
import type { Image, Machine } from "../model";

/** Those of which a machine can be made now, images first. */
export function made(images: readonly Image[]): Image[] {
  const ready = images.filter((image) => image.enabled && image.digest !== null);
  return [...ready.filter((image) => image.kind === "disk"), ...ready.filter((image) => image.kind === "iso")];
}

export function systems(images: readonly Image[]): { value: string; label: string }[] {
  return images.map((image) => ({ value: image.id, label: image.kind === "iso" ? `${image.name}, an ISO` : image.name }));
}

export function isIso(images: readonly Image[], id: string): boolean {
  return images.some((image) => image.id === id && image.kind === "iso");
}

export function installing(machine: Machine): Fragment {
  return html`<p>
    ${machine.name} boots the ISO, as there is nothing on its disk. Install it on its
    <a href="/console/${machine.id}?kind=vnc" target="_blank" rel="noopener">console</a>, and eject the ISO when you are done.
  </p>`;
}
