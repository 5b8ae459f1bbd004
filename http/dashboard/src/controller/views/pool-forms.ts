/** The forms that make and change networks, pools and what is set aside in them. */
import { html } from "lit-html";
import { api, firstOf } from "../../shared/api";
import type { Named, Node } from "../model";
import type { Network, Pool } from "../networking";
import { ask, chosen, given, givenNumbers, type Field, type Values } from "../../shared/ui";

type Done = () => Promise<void>;

export function addNetwork(done: Done): void {
  ask({
    title: "Create network",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "public" },
      { name: "mtu", label: "MTU", kind: "number", value: "1500" },
      { name: "default", label: "New machines are on it", kind: "checkbox" },
    ],
    action: "Create",
    submit: async (values) => {
      await api.post("/networks", { ...given(values, ["name"]), ...givenNumbers(values, ["mtu"]), default: values["default"] === "on" });
      await done();
    },
  });
}

export function changeNetwork(network: Network, done: Done): void {
  ask({
    title: `Change ${network.name}`,
    fields: [
      { name: "mtu", label: "MTU", kind: "number", required: true, value: String(network.mtu) },
      ...(network.default
        ? []
        : [{ name: "default", label: "New machines are on it, instead of the present default", kind: "checkbox" as const }]),
    ],
    action: "Save",
    submit: async (values) => {
      await api.patch(`/networks/${network.id}`, {
        ...givenNumbers(values, ["mtu"]),
        ...(values["default"] === "on" ? { default: true } : {}),
      });
      await done();
    },
  });
}

export function removeNetwork(network: Network, done: Done): void {
  ask({
    title: `Delete ${network.name}?`,
    text: "Refused while one of its addresses is in use, or a machine has a NIC on it.",
    action: "Delete",
    dangerous: true,
    submit: async () => {
      await api.delete(`/networks/${network.id}`);
      await done();
    },
  });
}

export async function addPool(network: Network, done: Done): Promise<void> {
  const [locations, nodes] = await places();
  ask({
    title: `Add pool to ${network.name}`,
    text: "The block of addresses and its family never change; everything else can.",
    wide: true,
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "public-v4" },
      { name: "cidr", label: "Block", required: true, placeholder: "198.51.100.0/24 or 2001:db8:100::/48" },
      ...poolFields(null, locations, nodes),
    ],
    action: "Add pool",
    submit: async (values) => {
      await api.post(`/networks/${network.id}/pools`, {
        ...given(values, ["name", "cidr"]),
        ...poolValues(values),
        ...givenNumbers(values, ["prefix_len"]),
      });
      await done();
    },
  });
}

export async function changePool(pool: Pool, done: Done): Promise<void> {
  const [locations, nodes] = await places();
  ask({
    title: `Change ${pool.name}`,
    text: html`<span class="mono">${pool.cidr}</span> stays as it is. What would strand an address in use is refused.`,
    wide: true,
    fields: [
      { name: "name", label: "Name", required: true, value: pool.name },
      ...poolFields(pool, locations, nodes),
      { name: "enabled", label: "Allocate addresses", kind: "checkbox", value: pool.enabled ? "on" : "" },
    ],
    action: "Save",
    submit: async (values) => {
      await api.patch(`/pools/${pool.id}`, {
        ...given(values, ["name"]),
        // What was emptied goes back to what a new pool would have.
        gateway: null,
        range_start: null,
        range_end: null,
        guest_prefix_len: null,
        vlan: null,
        ...poolValues(values),
        enabled: values["enabled"] === "on",
      });
      await done();
    },
  });
}

function places(): Promise<[Named[], Node[]]> {
  return Promise.all([firstOf<Named>("/locations"), firstOf<Node>("/nodes")]);
}

function poolFields(pool: Pool | null, locations: Named[], nodes: Node[]): Field[] {
  const options = (...values: [string, string][]) => values.map(([value, label]) => ({ value, label }));
  return [
    {
      name: "topology",
      label: "Topology",
      kind: "select",
      value: pool?.topology ?? "",
      options: options(
        ...(pool ? [] : [["", "nat for IPv4, routed for IPv6"] as [string, string]]),
        ["nat", "nat: behind the host's address"],
        ["routed", "routed: the host routes it to the guest"],
        ["bridged", "bridged: on the host's own segment"],
      ),
    },
    {
      name: "gateway_mode",
      label: "Gateway mode",
      kind: "select",
      value: pool?.gateway_mode ?? "onlink",
      options: options(["onlink", "on-link: the guest has its address alone"], ["subnet", "subnet: the guest is in the block"]),
    },
    { name: "gateway", label: "Gateway", value: pool?.gateway ?? "", placeholder: "IPv4: the first of the block; IPv6: fe80::1" },
    {
      name: "guest_prefix_len",
      label: "Prefix length in the guest",
      kind: "number",
      value: pool ? String(pool.guest_prefix_len) : "",
      placeholder: "default of the mode",
    },
    { name: "range_start", label: "First allocated address", value: pool?.range_start ?? "", placeholder: "the first usable" },
    { name: "range_end", label: "Last allocated address", value: pool?.range_end ?? "", placeholder: "the last usable" },
    ...(pool
      ? []
      : [{ name: "prefix_len", label: "Prefix of each machine", kind: "number" as const, placeholder: "64", hint: "IPv6 only" }]),
    { name: "vlan", label: "VLAN", kind: "number", value: pool?.vlan ? String(pool.vlan) : "", placeholder: "none", hint: "bridged only" },
    { name: "nameservers", label: "DNS servers", value: pool?.nameservers.join(" ") ?? "", placeholder: "9.9.9.9 149.112.112.112" },
    {
      name: "location_id",
      label: "Location",
      kind: "select",
      value: pool?.location_id ?? locations[0]?.id ?? "",
      options: locations.map((location) => ({ value: location.id, label: location.name })),
    },
    {
      name: "node_ids",
      label: "Nodes",
      kind: "choices",
      values: pool?.node_ids ?? [],
      hint: "none: every node in the location",
      options: nodes.map((node) => ({ value: node.id, label: node.name })),
    },
  ];
}

function poolValues(values: Values) {
  return {
    ...given(values, ["topology", "gateway_mode", "gateway", "range_start", "range_end", "location_id"]),
    ...givenNumbers(values, ["guest_prefix_len", "vlan"]),
    nameservers: (values["nameservers"] ?? "").split(/[\s,]+/).filter(Boolean),
    node_ids: chosen(values, "node_ids"),
  };
}

export function reserve(pool: Pool, done: Done): void {
  ask({
    title: `Reserve addresses of ${pool.name}`,
    text: "No machine gets them until the reservation is removed.",
    fields: [
      { name: "ip", label: "Address", required: true },
      { name: "range_end", label: "Last address, for a range" },
      { name: "kind", label: "Kind", placeholder: "router, printer, …" },
      { name: "note", label: "Why", required: true },
    ],
    action: "Reserve",
    submit: async (values) => {
      await api.post(`/pools/${pool.id}/reservations`, given(values, ["ip", "range_end", "kind", "note"]));
      await done();
    },
  });
}

export function block(pool: Pool, done: Done): void {
  ask({
    title: `Block an address of ${pool.name}`,
    text: "No machine gets it until it is unblocked. Refused while a machine holds it.",
    fields: [
      { name: "ip", label: "Address", required: true },
      { name: "note", label: "Why", required: true },
    ],
    action: "Block",
    submit: async (values) => {
      await api.post(`/pools/${pool.id}/block`, given(values, ["ip", "note"]));
      await done();
    },
  });
}

export function forceFree(pool: Pool, ip: string, done: Done): void {
  ask({
    title: `Force ${ip} free`,
    text: "Its host has not confirmed that it no longer routes this address. If it still does, two machines will answer for it. Do this only when the host is gone for good.",
    fields: [{ name: "note", label: "Why", required: true, hint: "kept in the audit with your name" }],
    action: "Force free",
    dangerous: true,
    typed: ip,
    submit: async (values) => {
      await api.post(`/pools/${pool.id}/force-free`, { ip, note: values["note"] });
      await done();
    },
  });
}
