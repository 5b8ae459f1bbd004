/** One node: what it is, whether it is fit, what runs on it. */
import { html, nothing } from "lit-html";
import { api, type Page } from "../../shared/api";
import type { Machine, Node, Task } from "../model";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, facts, shown, size, when, type Fragment } from "../../shared/ui";
import { machinesTable } from "./machines";
import { agentFacts, upgradeButton } from "./node-agent";
import { nodeNetwork } from "./node-network";
import { nodeOrphans } from "./node-orphans";
import { named } from "./platform";
import { tasksTable } from "./tasks";

export function nodeView(id: string): View {
  const node = new Resource<Node>((signal) => api.get(`/nodes/${id}`, {}, signal), ["node"]);
  const tasks = new Resource<Page<Task>>((signal) => api.get(`/nodes/${id}/tasks`, { page_size: 10 }, signal), ["task"]);
  const running = nodeForStaff(id);
  const orphans = nodeOrphans(id);
  return {
    get title() {
      return node.value?.name ?? "Node";
    },
    draw: () => html`${shown(
      node,
      (now) => html`
      <div class="head"><h1>${now.name}</h1>${badge(now.state)}<span class="gap"></span>
        ${upgradeButton(now)}
        <button @click=${() => void attempt(() => api.post(`/nodes/${id}/preflight`), "Checking the node.")}>Check again</button>
        <button @click=${() => void attempt(() => api.post(`/nodes/${id}/inventory`), "A new inventory was requested.")}>Refresh inventory</button>
        <button @click=${() =>
          void attempt(async () => {
            await api.patch(`/nodes/${id}`, { maintenance: !now.maintenance });
            await node.load();
          })}>
          ${now.maintenance ? "End maintenance" : "Maintenance"}</button>
        ${now.maintenance ? html`<button @click=${() => drain(now)}>Drain</button>` : nothing}
        ${now.state === "offline" ? html`<button class="danger" @click=${() => declareLost(now)}>Declare lost</button>` : nothing}
        <button class="danger" @click=${() => remove(now)}>Delete</button></div>
      ${now.state_reason ? html`<p class="failure" role="alert">${now.state_reason}</p>` : nothing}
      ${facts([
        ["Mode", now.mode],
        ["Location", now.location.name],
        ["Seen", when(now.seen_at)],
        ...agentFacts(now),
        ...capacity(now),
        ...factPairs(now),
      ])}
      ${
        now.health?.checks?.length
          ? html`<h2>Readiness</h2>
        <ul class="checks">${now.health.checks.map((check) => html`<li>${badge(check.status)} <b>${check.name}</b> <span class="quiet">${check.message}</span></li>`)}</ul>`
          : nothing
      }`,
    )}
      ${orphans.draw()}
      ${node.value ? carries(node.value) : nothing}
      ${node.value ? firmwares(node.value) : nothing}
      ${running.draw()}
      <h2>Tasks</h2>
      ${shown(tasks, (page) => tasksTable(page.items))}`,
    dispose: () => {
      node.dispose();
      tasks.dispose();
      running.dispose?.();
      orphans.dispose?.();
    },
  };
}

/** What of a node is staff's to see: whether its network agrees, and what runs on it. */
export function nodeForStaff(id: string): View {
  const machines = new Resource<Page<Machine>>((signal) => api.get("/vms", { node: id, page_size: 200 }, signal), ["vm"]);
  const network = nodeNetwork(id);
  return {
    title: "Node",
    draw: () => html`${network.draw()}
      <h2>Machines</h2>
      ${shown(machines, (page) => machinesTable(page.items, false, "No machines on this node."))}`,
    dispose: () => {
      machines.dispose();
      network.dispose?.();
    },
  };
}

function capacity(node: Node): [string, Fragment][] {
  const has = node.capacity;
  if (!has) return [];
  return [
    ["Processors", `${has["cpus"]} (load ${has["load_1m"]?.toFixed(2)})`],
    ["Memory", `${size(has["memory_free_mib"] ?? 0)} free of ${size(has["memory_mib"] ?? 0)}`],
    ["Disk", `${size((has["disk_free_gib"] ?? 0) * 1024)} free of ${size((has["disk_gib"] ?? 0) * 1024)}`],
  ];
}

function factPairs(node: Node): [string, Fragment][] {
  const names: [string, keyof NonNullable<Node["facts"]>][] = [
    ["Host name", "hostname"],
    ["System", "os"],
    ["Kernel", "kernel"],
    ["libvirt", "libvirt"],
    ["Hypervisor", "hypervisor"],
    ["Processor", "cpu_model"],
    ["Accelerator", "accelerator"],
  ];
  return names.flatMap(([label, name]) => (node.facts?.[name] ? [[label, String(node.facts[name])] as [string, Fragment]] : []));
}

/** Which kinds of network its host can carry, and why not the others. Single gateways are named where a pool asks for them. */
function carries(node: Node): Fragment {
  const features = (node.facts?.["network_features"] ?? []) as string[];
  const lacks = Object.entries((node.facts?.["network_lacks"] ?? {}) as Record<string, string>).filter(
    ([feature]) => !feature.startsWith("gateway:"),
  );
  if (!features.length && !lacks.length) return nothing;
  return html`<h2>Networks that it can carry</h2>
    <ul class="checks">${features.length ? html`<li>${badge("ok")} ${features.join(", ")}</li>` : nothing}
      ${lacks.map(([feature, why]) => html`<li>${badge("lacking")} <b>${feature}</b> <span class="quiet">${why}</span></li>`)}</ul>`;
}

/** What machines of it can have beneath their system, and what to do for the rest. */
function firmwares(node: Node): Fragment {
  const features = node.facts?.platform_features ?? [];
  const lacks = Object.entries(node.facts?.platform_lacks ?? {});
  if (!features.length && !lacks.length) return nothing;
  return html`<h2>Firmware of its machines</h2>
    <ul class="checks"><li>${badge("ok")} ${["bios", ...features].map(named).join(", ")}</li>
      ${lacks.map(([feature, why]) => html`<li>${badge("lacking")} <b>${named(feature)}</b> <span class="quiet">${why}</span></li>`)}</ul>`;
}

function drain(node: Node): void {
  ask({
    title: `Drain ${node.name}`,
    text: "Every machine moves to the emptiest node that can take it, a few at a time; running machines migrate live if possible. The task lists machines that stay, with the reason.",
    fields: [{ name: "restart", label: "Restart running machines that cannot migrate live; otherwise they stay", kind: "checkbox" }],
    action: "Drain",
    submit: (values) => api.post(`/nodes/${node.id}/drain`, { restart: values["restart"] === "on" }),
  });
}

function declareLost(node: Node): void {
  ask({
    title: `Declare ${node.name} lost`,
    text: `Only if its host will never come back: its certificate is revoked permanently. Its machines can then be
      deleted without it; their addresses stay reserved until each is forced free.`,
    action: "Declare lost",
    dangerous: true,
    typed: node.name,
    fields: [{ name: "note", label: "Reason", required: true }],
    submit: (values) => api.post(`/nodes/${node.id}/declare-lost`, { confirm: node.name, note: values["note"] }),
  });
}

function remove(node: Node): void {
  ask({
    title: `Delete ${node.name}`,
    text: "Its certificate is revoked and its agent disconnected. Refused while machines are placed on it.",
    action: "Delete",
    dangerous: true,
    typed: node.name,
    submit: async () => {
      await api.delete(`/nodes/${node.id}`);
      go("/nodes");
    },
  });
}
