/** One pool: how full it is, what is set aside in it and why, and who holds what. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { shares } from "../charts";
import type { Node } from "../model";
import type { Allocation, Pool, Reservation } from "../networking";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, facts, shown, table, when, type Fragment } from "../../shared/ui";
import { list, pager } from "../../shared/list";
import { parts } from "./networks";
import { block, changePool, forceFree, reserve } from "./pool-forms";

const STATES = ["allocated", "releasing", "reserved", "blocked"];

export function poolView(id: string): View {
  const pool = new Resource<Pool>((signal) => api.get(`/pools/${id}`, {}, signal), ["activity", "vm"]);
  const nodes = new Resource<Page<Node>>((signal) => api.get("/nodes", { page_size: 200 }, signal));
  let page = 1;
  const reservations = new Resource<Page<Reservation>>((signal) => api.get(`/pools/${id}/reservations`, { page }, signal), ["activity"]);
  const allocations = list<Allocation>({
    title: "Addresses in use",
    inner: true,
    path: `/pools/${id}/allocations`,
    kinds: ["activity", "vm"],
    searchable: true,
    filters: [{ name: "state", label: "State", options: STATES }],
    rows: (held) =>
      table(
        ["Address", "State", "Held by", "Why", "Since", ""],
        held.map(
          (one) => html`<tr>
      <td class="mono">${one.ip}</td><td>${badge(one.state)}</td>
      <td>${one.vm_id ? html`<a href="#/machines/${one.vm_id}">${one.vm_name}</a>${one.primary ? html` <span class="quiet">primary</span>` : nothing}` : "—"}</td>
      <td class="wide">${one.note ?? ""}</td><td>${when(one.changed_at)}</td>
      <td class="act">${action(one)}</td></tr>`,
        ),
        "No address is in use.",
      ),
  });
  const done = async () => {
    await Promise.all([pool.load(), reservations.load(), allocations.load()]);
  };
  const action = (one: Allocation): Fragment => {
    const now = pool.value;
    if (!now) return nothing;
    if (one.state === "releasing")
      return html`<button class="danger" aria-label="Force ${one.ip} free" @click=${() => forceFree(now, one.ip, done)}>Force free</button>`;
    if (one.state === "blocked") {
      return html`<button aria-label="Unblock ${one.ip}" @click=${() =>
        void attempt(async () => {
          await api.post(`/pools/${id}/unblock`, { ip: one.ip });
          await done();
        })}>Unblock</button>`;
    }
    return nothing;
  };
  return {
    get title() {
      return pool.value?.name ?? "Pool";
    },
    draw: () =>
      html`${shown(
        pool,
        (now) => html`
      <div class="head"><h1>${now.name}</h1>${badge(now.enabled ? "active" : "disabled")}<span class="gap"></span>
        <button @click=${() => reserve(now, done)}>Reserve</button>
        <button @click=${() => block(now, done)}>Block address</button>
        <button @click=${() => void attempt(() => changePool(now, done))}>Change</button>
        <button class="danger" @click=${() => remove(now)}>Delete</button></div>
      ${facts([
        ["Network", html`<a href="#/networks">${now.network_name}</a>`],
        ["Block", html`<span class="mono">${now.cidr}</span>`],
        ...(now.family === 6 && now.prefix_len ? [["Each machine gets", `a /${now.prefix_len}`] as [string, Fragment]] : []),
        ["Range", html`<span class="mono">${now.range_start} – ${now.range_end}</span>`],
        ["Topology", now.vlan ? `${now.topology}, VLAN ${now.vlan}` : now.topology],
        [
          "Gateway",
          html`<span class="mono">${now.gateway}</span> <span class="quiet">${now.gateway_mode === "onlink" ? "on-link" : "in the subnet"}</span>`,
        ],
        ["Prefix in the guest", `/${now.guest_prefix_len}`],
        ["DNS servers", now.nameservers.length ? html`<span class="mono">${now.nameservers.join(", ")}</span>` : "—"],
        ["Nodes", now.node_ids.length ? nodeNames(now, nodes.value) : "every node in the location"],
      ])}
      ${filling(now)}
      <h2>Set aside</h2>
      ${shown(
        reservations,
        (all) => html`${table(
          ["Address", "Kind", "Why", ""],
          all.items.map(
            (one) => html`<tr>
        <td class="mono">${one.ip}${one.range_end ? html` – ${one.range_end}` : nothing}</td><td>${one.kind}</td><td class="wide">${one.note}</td>
        <td class="act">${
          one.arithmetic
            ? html`<span class="quiet">by the pool itself</span>`
            : html`<button class="danger" aria-label="Remove the reservation of ${one.ip}" @click=${() => removeReservation(now, one, done)}>Remove</button>`
        }</td></tr>`,
          ),
          "No addresses are reserved.",
        )}
        ${pager(all, (number) => {
          page = number;
          void reservations.load();
        })}`,
      )}
      ${allocations.draw()}`,
      )}`,
    dispose: () => {
      pool.dispose();
      nodes.dispose();
      reservations.dispose();
      allocations.dispose?.();
    },
  };
}

function filling(pool: Pool): TemplateResult {
  return html`<div class="panel filling">${shares(`Addresses of ${pool.name}`, parts(pool), pool.total)}
    <p class="legend">${parts(pool).map((part) => html`<span class="key ${part.name}"><b>${part.count.toLocaleString()}</b> ${part.name}</span>`)}
      <span class="key free"><b>${pool.free_count.toLocaleString()}</b> free of ${pool.total.toLocaleString()}${pool.family === 6 ? " sub-prefixes" : ""}</span></p></div>`;
}

function nodeNames(pool: Pool, nodes: Page<Node> | null): string {
  return pool.node_ids.map((id) => nodes?.items.find((node) => node.id === id)?.name ?? id).join(", ");
}

function removeReservation(pool: Pool, reservation: Reservation, done: () => Promise<void>): void {
  ask({
    title: `Remove the reservation of ${reservation.ip}?`,
    text: "Machines may be given the address from now on.",
    action: "Remove",
    dangerous: true,
    submit: async () => {
      await api.delete(`/pools/${pool.id}/reservations/${reservation.id}`);
      await done();
    },
  });
}

function remove(pool: Pool): void {
  ask({
    title: `Delete ${pool.name}`,
    text: "Refused while any of its addresses is held, also while one is being released.",
    action: "Delete",
    dangerous: true,
    typed: pool.name,
    submit: async () => {
      await api.delete(`/pools/${pool.id}`);
      go("/networks");
    },
  });
}
