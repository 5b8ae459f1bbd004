/** The nodes, and adding one. */
import { html, nothing } from "lit-html";
import { api, firstOf } from "../../shared/api";
import type { Named, Node, NodeBootstrap } from "../model";
import type { View } from "../../shared/page";
import { ask, attempt, badge, secret, when } from "../../shared/ui";
import { list } from "../../shared/list";
import { agentOf, upgradeAll } from "./node-agent";

export function nodesView(): View {
  return list<Node>({
    title: "Nodes",
    path: "/nodes",
    kinds: ["node"],
    searchable: true,
    filters: [
      { name: "state", label: "State", options: ["pending", "online", "offline", "maintenance", "lost"] },
      { name: "mode", label: "Mode", options: ["managed", "observe"] },
    ],
    buttons: () => html`<button @click=${upgradeAll}>Upgrade agents</button>
      <button class="primary" @click=${() => void attempt(addNode)}>Add node</button>`,
    rows: (nodes) =>
      nodes.length
        ? html`<div class="scroll"><table>
            <thead><tr><th scope="col">Name</th><th scope="col">State</th><th scope="col">Agent</th><th scope="col">Mode</th><th scope="col">Location</th><th scope="col">Machines</th><th scope="col">Seen</th></tr></thead>
            <tbody>${nodes.map(
              (node) => html`<tr>
              <td><a href="#/nodes/${node.id}">${node.name}</a></td>
              <td>${badge(node.state, node.state_reason)}${node.maintenance && node.state !== "maintenance" ? badge("maintenance") : nothing}</td>
              <td>${agentOf(node)}</td><td>${node.mode}</td><td>${node.location.name}</td><td>${node.allocated.machines}</td><td>${when(node.seen_at)}</td></tr>`,
            )}</tbody>
          </table></div>`
        : html`<p class="empty">No nodes yet. Add one: the command it gives is run on the node, as root.</p>`,
  });
}

async function addNode(): Promise<void> {
  const locations = await firstOf<Named>("/locations");
  ask({
    title: "Add node",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "node-1" },
      {
        name: "location_id",
        label: "Location",
        kind: "select",
        options: locations.map((location) => ({ value: location.id, label: location.name })),
      },
      {
        name: "mode",
        label: "Mode",
        kind: "select",
        options: [
          { value: "managed", label: "managed" },
          { value: "observe", label: "observe only" },
        ],
      },
    ],
    action: "Create token",
    submit: async (values) => {
      const made = await api.post<NodeBootstrap>("/nodes/bootstrap", values);
      return html`<p>Run this on ${made.name}, as root. The token in it is shown only once, and works once.</p>${secret(made.command)}`;
    },
  });
}
