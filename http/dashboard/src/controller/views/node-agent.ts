/** A node's agent: its release, and its upgrade to the release that the controller brings. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Node } from "../model";
import { ask, attempt, badge, count, type Fragment } from "../../shared/ui";

export function agentOf(node: Node): Fragment {
  const agent = node.agent;
  if (!agent) return "—";
  return html`${agent.version}${agent.upgrade === "current" ? nothing : html` ${badge(agent.upgrade, REMEDIES[agent.upgrade])}`}`;
}

export function agentFacts(node: Node): [string, Fragment][] {
  if (!node.agent) return [];
  return [["Agent", html`${agentOf(node)} <span class="quiet">protocol ${node.agent.protocol}</span>`]];
}

/** Offered where the agent can replace itself, and is not doing so. */
export function upgradeButton(node: Node): Fragment {
  if (node.agent?.upgrade !== "available" && node.agent?.upgrade !== "failed") return nothing;
  const upgrade = () => void attempt(() => api.post(`/nodes/${node.id}/upgrade`), "The agent is being upgraded. Machines keep running.");
  return html`<button @click=${upgrade}>Upgrade agent</button>`;
}

export function upgradeAll(): void {
  ask({
    title: "Upgrade agents",
    text: "Every online node with another release gets the controller's. Machines keep running. The first failure stops the rest.",
    fields: [{ name: "at_once", label: "How many at a time", kind: "number", required: true, value: "3" }],
    action: "Upgrade",
    submit: async (values) => {
      const ordered = await api.post<{ release: string; tasks: unknown[] }>("/nodes/upgrade", { at_once: Number(values["at_once"]) });
      return html`<p>${ordered.tasks.length ? `${count(ordered.tasks.length, "agent")} to be replaced by ${ordered.release}.` : "No agent can be replaced now."}</p>`;
    },
  });
}

const REMEDIES = {
  current: null,
  available: "The controller has another release.",
  under_way: "A task upgrades it, or is queued.",
  failed: "The last attempt failed, and the agent runs as before. An alert has the reason.",
  by_hand: "It cannot upgrade itself: run the command for a new node there again, or install the package.",
} as const;
