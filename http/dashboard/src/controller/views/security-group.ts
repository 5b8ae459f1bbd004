/** One security group: its rules, and the machines in it. Whatever changes is applied to each of them. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Rule, SecurityGroup } from "../networking";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, facts, given, givenNumbers, shown, table, type Field, type Values } from "../../shared/ui";
import { reach } from "./security-groups";

type Draft = Partial<Pick<Rule, "direction" | "action" | "protocol" | "family" | "port_from" | "port_to" | "cidr" | "icmp_type" | "note">>;

const PRESETS: { label: string; rules: Draft[] }[] = [
  { label: "SSH", rules: [{ protocol: "tcp", port_from: 22, note: "SSH" }] },
  { label: "HTTP", rules: [{ protocol: "tcp", port_from: 80, note: "HTTP" }] },
  {
    label: "HTTPS",
    rules: [
      { protocol: "tcp", port_from: 443, note: "HTTPS" },
      { protocol: "udp", port_from: 443, note: "HTTP/3" },
    ],
  },
  {
    label: "Ping",
    rules: [
      { protocol: "icmp", family: 4, icmp_type: 8, note: "Ping" },
      { protocol: "icmp", family: 6, icmp_type: 128, note: "Ping" },
    ],
  },
];

export function securityGroupView(id: string): View {
  const group = new Resource<SecurityGroup>((signal) => api.get(`/security-groups/${id}`, {}, signal), ["activity", "vm"]);
  return {
    get title() {
      return group.value?.name ?? "Security group";
    },
    draw: () =>
      html`${shown(
        group,
        (now) => html`
      <div class="head"><h1>${now.name}</h1>${now.description ? html`<span class="quiet">${now.description}</span>` : nothing}<span class="gap"></span>
        <button class="danger" @click=${() => remove(now)}>Delete</button></div>
      ${facts([
        ["Project", now.project_name ?? "every project"],
        ["Default ingress", badge(now.default_ingress)],
        ["Default egress", badge(now.default_egress)],
        ["Replies", "always pass"],
        ["Machines", now.machines ? machines(now) : String(now.machine_count)],
      ])}
      <div class="head"><h2>Rules</h2><span class="gap"></span>
        ${PRESETS.map((preset) => html`<button title="Let ${preset.label} come in" @click=${() => void attempt(() => allow(group, preset.rules))}>+ ${preset.label}</button>`)}
        <button class="primary" @click=${() => add(group)}>Add rule</button></div>
      ${table(
        ["Direction", "Action", "What", "Other side", "Note", ""],
        now.rules.map(
          (rule) => html`<tr>
        <td>${rule.direction === "ingress" ? "in" : "out"}</td><td>${badge(rule.action)}</td><td>${traffic(rule)}</td>
        <td>${rule.cidr ? html`<span class="mono">${rule.cidr}</span>` : html`<span class="quiet">anybody</span>`}</td><td>${rule.note}</td>
        <td class="act"><button class="danger" aria-label="Remove the rule ${traffic(rule)}" @click=${() => removeRule(group, rule)}>Remove</button></td></tr>`,
        ),
        "No rules: what comes in and goes out is as above.",
      )}`,
      )}`,
    dispose: () => group.dispose(),
  };
}

function machines(group: SecurityGroup) {
  const named = group.machines ?? [];
  if (!named.length) return html`none`;
  return html`${named.map((vm, place) => html`${place ? ", " : ""}<a href="#/machines/${vm.id}">${vm.name}</a>`)}`;
}

/** A rule's traffic in a word: "TCP 80 to 90", "ICMPv6 type 128". */
function traffic(rule: Rule): string {
  const family = rule.family === null || rule.cidr !== null ? "" : ` over IPv${rule.family}`;
  switch (rule.protocol) {
    case "icmp":
      return `${rule.family === 6 ? "ICMPv6" : rule.family === 4 ? "ICMP" : "ICMP and ICMPv6"}${rule.icmp_type === null ? "" : ` type ${rule.icmp_type}`}`;
    case "any":
      return `everything${family}`;
    default: {
      const last = rule.port_to ?? rule.port_from;
      const ports =
        rule.port_from === null ? "every port" : last === rule.port_from ? String(rule.port_from) : `${rule.port_from} to ${last}`;
      return `${rule.protocol.toUpperCase()} ${ports}${family}`;
    }
  }
}

/** The rules of a preset that are not there yet. */
async function allow(group: Resource<SecurityGroup>, rules: Draft[]): Promise<void> {
  const { id, rules: present } = group.value as SecurityGroup;
  const there = (wanted: Draft) =>
    present.some(
      (rule) =>
        rule.direction === "ingress" &&
        rule.action === "accept" &&
        rule.cidr === null &&
        rule.protocol === wanted.protocol &&
        rule.family === (wanted.family ?? null) &&
        rule.port_from === (wanted.port_from ?? null) &&
        rule.icmp_type === (wanted.icmp_type ?? null),
    );
  try {
    for (const rule of rules.filter((wanted) => !there(wanted))) {
      await api.post(`/security-groups/${id}/rules`, { direction: "ingress", action: "accept", ...rule });
    }
  } finally {
    await group.load();
  }
}

function add(group: Resource<SecurityGroup>): void {
  const now = group.value as SecurityGroup;
  const options = (...values: [string, string][]) => values.map(([value, label]) => ({ value, label }));
  const fields: Field[] = [
    { name: "direction", label: "Direction", kind: "select", options: options(["ingress", "comes in"], ["egress", "goes out"]) },
    { name: "action", label: "Action", kind: "select", options: options(["accept", "accept"], ["drop", "drop"]) },
    {
      name: "protocol",
      label: "Protocol",
      kind: "select",
      options: options(["tcp", "TCP"], ["udp", "UDP"], ["icmp", "ICMP"], ["any", "any"]),
    },
    { name: "family", label: "Family", kind: "select", options: options(["", "IPv4 and IPv6"], ["4", "IPv4"], ["6", "IPv6"]) },
    { name: "port_from", label: "Port", kind: "number", hint: "TCP and UDP; empty: every port" },
    { name: "port_to", label: "Last port", kind: "number", hint: "for a range" },
    { name: "cidr", label: "Other side", placeholder: "203.0.113.0/24", hint: "empty: anybody" },
    { name: "icmp_type", label: "ICMP type", kind: "number", hint: "ICMP of one family; empty: every type" },
    { name: "note", label: "Note" },
  ];
  ask({
    title: `Add rule to ${now.name}`,
    text: reach(now),
    fields,
    wide: true,
    action: "Add rule",
    submit: async (values: Values) => {
      await api.post(`/security-groups/${now.id}/rules`, {
        ...given(values, ["direction", "action", "protocol", "cidr", "note"]),
        ...givenNumbers(values, ["family", "port_from", "port_to", "icmp_type"]),
      });
      await group.load();
    },
  });
}

function removeRule(group: Resource<SecurityGroup>, rule: Rule): void {
  const now = group.value as SecurityGroup;
  ask({
    title: `Remove rule ${traffic(rule)}?`,
    text: reach(now),
    action: "Remove",
    dangerous: true,
    submit: async () => {
      await api.delete(`/security-groups/${now.id}/rules/${rule.id}`);
      await group.load();
    },
  });
}

function remove(group: SecurityGroup): void {
  ask({
    title: `Delete ${group.name}?`,
    text: "Refused while a machine is in it.",
    action: "Delete",
    dangerous: true,
    submit: async () => {
      await api.delete(`/security-groups/${group.id}`);
      go("/security-groups");
    },
  });
}
