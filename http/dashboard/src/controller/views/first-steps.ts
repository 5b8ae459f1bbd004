/** What an administrator does before there is a first machine, and what of it is done. */
import { html } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { badge, shown, type Fragment } from "../../shared/ui";
import type { Image, Overview } from "../model";

interface Ready {
  image: boolean;
  addresses: boolean;
}

export class FirstSteps {
  private readonly ready = new Resource<Ready>(ready, ["image", "activity"]);

  draw(now: Overview): Fragment {
    const nodes = Object.values(now.nodes).some((count) => count > 0);
    return shown(
      this.ready,
      ({ image, addresses }) => html`<h2>First steps</h2>
      <ol class="steps">
        ${step(nodes, "#/nodes", "Add a node", "a host with KVM; the page says what to run on it")}
        ${step(image, "#/images", "Have an image", "refresh the catalogue, or add one of your own")}
        ${step(addresses, "#/networks", "Give machines addresses", "a pool for each network that they reach the world by")}
        ${step(false, "#/machines", "Create a machine", "for yourself, or in a customer's project")}
      </ol>`,
    );
  }

  dispose(): void {
    this.ready.dispose();
  }
}

async function ready(signal: AbortSignal): Promise<Ready> {
  const [images, pools] = await Promise.all([
    api.get<Image[]>("/images", {}, signal),
    api.get<{ total: number }>("/pools", { page_size: 1 }, signal),
  ]);
  const usable = ({ kind, enabled, digest }: Image) => kind === "disk" && enabled && digest !== null;
  return { image: images.some(usable), addresses: pools.total > 0 };
}

function step(done: boolean, href: string, what: string, how: string): Fragment {
  return html`<li>${done ? html`${what} ${badge("done")}` : html`<a href=${href}>${what}</a> <span class="quiet">${how}</span>`}</li>`;
}
