/** A machine's NICs and addresses, what its host lets through, and how far its host has followed. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, everyOf } from "../../shared/api";
import type { Machine, Me } from "../model";
import type { MachineAddress, MachineNetworking, Nic, SecurityGroup } from "../networking";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, bytes, chosen, facts, given, shown, table, when, type Field, type Fragment } from "../../shared/ui";

type Owned = Pick<Machine, "id" | "name" | "project_id">;

export function machineNetworking(me: Me, vm: Owned): Part {
  const networking = new Resource<MachineNetworking>((signal) => api.get(`/vms/${vm.id}/networking`, {}, signal), ["vm", "activity"]);
  return {
    draw: () => html`
      <div class="head"><h2>Networking</h2>${networking.value ? badge(networking.value.status, networking.value.error) : nothing}<span class="gap"></span>
        ${networking.value ? buttons(me, vm, networking) : nothing}</div>
      ${shown(
        networking,
        (now) => html`${standing(now)}${limits(now)}${now.nics.map((nic, place) => card(me, vm, networking, nic, place))}
        ${now.nics.length ? nothing : html`<p class="empty">No network card.</p>`}`,
      )}`,
    dispose: () => networking.dispose(),
  };
}

function buttons(me: Me, vm: Owned, networking: Resource<MachineNetworking>): TemplateResult {
  const now = networking.value as MachineNetworking;
  return html`
    ${now.nics.length ? html`<button @click=${() => attach(vm, networking)}>Attach address</button>` : nothing}
    <button @click=${() => void attempt(() => chooseGroups(vm, networking))}>Set security groups</button>
    ${me.role === "administrator" ? html`<button @click=${() => capRate(vm, networking)}>Rate cap</button>` : nothing}`;
}

/** What is unusual: the host is behind, or the machine is held back. */
function standing(now: MachineNetworking): Fragment {
  return html`
    ${now.isolated ? html`<p class="failure" role="alert">Cut off. ${now.isolated_reason ?? "Its host blocks its traffic."}</p>` : nothing}
    ${
      now.status === "failed"
        ? html`<p class="failure" role="alert">Its host could not do this: ${now.error ?? "no reason was given."}
      <br><span class="quiet">The previous network still applies. The change is retried automatically.</span></p>`
        : nothing
    }
    ${now.status === "waiting" ? html`<p class="quiet">${now.error ?? "The change is recorded; its host gets it as soon as it is online."}</p>` : nothing}`;
}

function limits(now: MachineNetworking): TemplateResult {
  const throttled = now.effective_rate_mbps !== null && now.effective_rate_mbps !== now.rate_mbps;
  const rate =
    now.effective_rate_mbps === null
      ? "no cap"
      : html`${now.effective_rate_mbps} Mbit/s${throttled ? html` <span class="quiet">throttled${now.rate_mbps ? `; its own cap is ${now.rate_mbps}` : ""}</span>` : nothing}`;
  return facts([
    [
      "Security groups",
      now.groups.length
        ? html`${now.groups.map((group, place) => html`${place ? ", " : ""}<a href="#/security-groups/${group.id}">${group.name}</a>`)}`
        : html`none <span class="quiet">not filtered</span>`,
    ],
    ["Rate", rate],
    ["IPv4 addresses", now.ipv4_allowed === null ? String(now.ipv4_count) : `${now.ipv4_count} of ${now.ipv4_allowed} in its plan`],
    ["Received this month", now.month?.samples ? bytes(now.month.received_bytes) : "—"],
    ["Sent this month", now.month?.samples ? bytes(now.month.sent_bytes) : "—"],
  ]);
}

function card(me: Me, vm: Owned, networking: Resource<MachineNetworking>, nic: Nic, place: number): TemplateResult {
  const staff = me.role !== "customer";
  const heads = ["Address", "Gateway", "Kind", ...(staff ? ["Pool"] : []), "State", ""];
  return html`
    <h3>NIC ${place + 1} <span class="quiet"><span class="mono">${nic.mac}</span> · ${nic.network_name} · MTU ${nic.mtu}</span></h3>
    ${table(
      heads,
      nic.addresses.map(
        (address) => html`<tr>
      <td class="mono">${address.interface}</td><td class="mono">${address.gateway}</td><td>IPv${address.family}, ${address.topology}</td>
      ${staff ? html`<td>${poolLink(me, address)}</td>` : nothing}
      <td>${badge(address.state)}${address.state === "releasing" ? html` <span class="quiet">${when(address.changed_at)}</span>` : nothing}</td>
      <td class="act">${
        address.primary
          ? html`<span class="quiet">primary</span>`
          : address.state === "allocated"
            ? html`<button class="danger" aria-label="Detach ${address.ip}" @click=${() => detach(vm, networking, address)}>Detach</button>`
            : nothing
      }</td></tr>`,
      ),
      "No addresses.",
    )}`;
}

function poolLink(me: Me, address: MachineAddress): Fragment {
  if (!address.pool_id) return "—";
  return me.role === "administrator" ? html`<a href="#/networks/${address.pool_id}">${address.pool_name}</a>` : html`${address.pool_name}`;
}

function attach(vm: Owned, networking: Resource<MachineNetworking>): void {
  const { nics, pools } = networking.value as MachineNetworking;
  const fields: Field[] = [
    {
      name: "family",
      label: "Family",
      kind: "select",
      options: [
        { value: "4", label: "IPv4" },
        { value: "6", label: "IPv6" },
      ],
    },
    ...(nics.length > 1
      ? [
          {
            name: "nic_id",
            label: "Card",
            kind: "select" as const,
            options: nics.map((nic, place) => ({ value: nic.id, label: `${place + 1}: ${nic.network_name}, ${nic.mac}` })),
          },
        ]
      : []),
    ...(pools.length
      ? [
          {
            name: "pool_id",
            label: "Pool",
            kind: "select" as const,
            options: [
              { value: "", label: "the first with a free address" },
              ...pools.map((pool) => ({ value: pool.id, label: `${pool.name}: IPv${pool.family}, ${pool.topology}` })),
            ],
          },
          { name: "ip", label: "Address", placeholder: "the next free one" },
        ]
      : []),
  ];
  ask({
    title: `Attach address to ${vm.name}`,
    text: "A running guest gets it through its agent; any other reads it at its next start.",
    fields,
    action: "Attach",
    submit: async (values) => {
      // A pool is of one family and says it.
      await api.post(`/vms/${vm.id}/ips`, {
        ...(values["pool_id"] ? {} : { family: Number(values["family"]) }),
        ...given(values, ["nic_id", "pool_id", "ip"]),
      });
      await networking.load();
    },
  });
}

function detach(vm: Owned, networking: Resource<MachineNetworking>, address: MachineAddress): void {
  ask({
    title: `Detach ${address.ip}?`,
    text: `${vm.name} loses it at once. Others can get it when the host has confirmed that it no longer routes it.`,
    action: "Detach",
    dangerous: true,
    submit: async () => {
      await api.post(`/vms/${vm.id}/ips/detach`, { ip: address.ip });
      await networking.load();
    },
  });
}

async function chooseGroups(vm: Owned, networking: Resource<MachineNetworking>): Promise<void> {
  // All of them: what is given back is the machine's whole set.
  const everyones = await everyOf<SecurityGroup>("/security-groups");
  const groups = everyones.filter((group) => group.project_id === null || group.project_id === vm.project_id);
  if (!groups.length) {
    ask({
      title: `Security groups of ${vm.name}`,
      text: html`There are no security groups yet. Create one under <a href="#/security-groups">Security groups</a>.`,
      action: "Close",
      submit: async () => {},
    });
    return;
  }
  ask({
    title: `Security groups of ${vm.name}`,
    text: "Groups add up; a drop wins over an accept. Without a group nothing is filtered.",
    fields: [
      {
        name: "group",
        label: "Groups",
        kind: "choices",
        values: (networking.value as MachineNetworking).groups.map((group) => group.id),
        options: groups.map((group) => ({
          value: group.id,
          label: group.project_name ? `${group.name} (${group.project_name})` : group.name,
        })),
      },
    ],
    action: "Apply",
    submit: async (values) => {
      await api.put(`/vms/${vm.id}/security-groups`, { group_ids: chosen(values, "group") });
      await networking.load();
    },
  });
}

function capRate(vm: Owned, networking: Resource<MachineNetworking>): void {
  const { rate_mbps } = networking.value as MachineNetworking;
  ask({
    title: `Rate cap of ${vm.name}`,
    fields: [
      { name: "rate_mbps", label: "Mbit/s, each way", kind: "number", required: true, value: String(rate_mbps ?? 0), hint: "0: no cap" },
    ],
    action: "Set",
    submit: async (values) => {
      await api.patch(`/vms/${vm.id}/network`, { rate_mbps: Number(values["rate_mbps"]) });
      await networking.load();
    },
  });
}
