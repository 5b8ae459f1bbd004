/** Networks and their pools of addresses: how full each is. For administrators. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { shares } from "../charts";
import type { Network, Pool } from "../networking";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, shown, table } from "../../shared/ui";
import { addNetwork, addPool, changeNetwork, removeNetwork } from "./pool-forms";

export function networksView(): View {
  const networks = new Resource<Network[]>((signal) => api.get("/networks", {}, signal), ["activity", "vm"]);
  const done = () => networks.load();
  return {
    title: "Networks",
    draw: () => html`
      <div class="head"><h1>Networks</h1><span class="gap"></span><button class="primary" @click=${() => addNetwork(done)}>Create network</button></div>
      ${shown(
        networks,
        (all) => html`${all.map(
          (network) => html`
        <section><div class="head"><h2>${network.name}</h2><span class="quiet">${network.default ? "new machines are on it · " : ""}MTU ${network.mtu}</span><span class="gap"></span>
          <button @click=${() => void attempt(() => addPool(network, done))}>Add pool</button>
          <button @click=${() => changeNetwork(network, done)}>Change</button>
          <button class="danger" @click=${() => removeNetwork(network, done)}>Delete</button></div>
        ${table(
          ["Pool", "Addresses", "Topology", "VLAN", "In use", "Free", ""],
          network.pools.map(poolRow),
          "No pools: machines on this network get no address.",
        )}</section>`,
        )}
        ${all.length ? nothing : html`<p class="empty">No networks.</p>`}`,
      )}`,
    dispose: () => networks.dispose(),
  };
}

function poolRow(pool: Pool): TemplateResult {
  return html`<tr>
    <td><a href="#/networks/${pool.id}">${pool.name}</a></td>
    <td class="mono">${pool.cidr}${pool.prefix_len && pool.family === 6 ? html` <span class="quiet">by /${pool.prefix_len}</span>` : nothing}</td>
    <td>${pool.topology}</td><td>${pool.vlan ?? "—"}</td>
    <td class="usage">${usage(pool)}</td>
    <td>${pool.free_count.toLocaleString()} <span class="quiet">of ${pool.total.toLocaleString()}</span></td>
    <td>${pool.enabled ? nothing : badge("disabled")}</td></tr>`;
}

/** How full a pool is, and of what. */
export function usage(pool: Pool): TemplateResult {
  return html`${shares(`Addresses of ${pool.name}`, parts(pool), pool.total)}
    <span class="quiet">${(pool.pressure * 100).toLocaleString(undefined, { maximumFractionDigits: pool.pressure < 0.1 ? 1 : 0 })} %</span>`;
}

export function parts(pool: Pool): { name: string; count: number }[] {
  return [
    { name: "allocated", count: pool.allocated_count },
    { name: "releasing", count: pool.releasing_count },
    { name: "reserved", count: pool.reserved_count },
    { name: "blocked", count: pool.blocked_count },
  ];
}
