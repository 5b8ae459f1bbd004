/** Whether a node's host has the networks that the records say, and what it had to drop. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { NodeNetwork } from "../networking";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, shown, table, when } from "../../shared/ui";

export function nodeNetwork(id: string): Part {
  const network = new Resource<NodeNetwork>((signal) => api.get(`/nodes/${id}/network`, {}, signal), ["node", "alert"]);
  return {
    draw: () => html`<h2>Network</h2>
      ${shown(network, (now) =>
        now.probed_at === null
          ? html`<p class="quiet">The host was not compared yet.</p>`
          : html`
        <p>${badge(now.agrees ? "agrees" : "differs")} ${now.agrees ? "The host agrees with the records." : "The host differs from the records."}
          <span class="quiet">Looked at ${when(now.probed_at)}.</span></p>
        ${
          now.differences.length
            ? table(
                ["Machine", "What differs"],
                now.differences.map(
                  (difference) => html`<tr>
          <td>${machine(difference.vm_id, difference.vm_name)}</td><td class="wide">${difference.problem}</td></tr>`,
                ),
                "",
              )
            : nothing
        }
        ${table(
          ["Machine", "Tap", "Rate", "Spoofed frames dropped"],
          now.taps.map(
            (tap) => html`<tr>
          <td>${machine(tap.vm_id, tap.vm_name)}</td><td><span class="mono">${tap.device}</span>${tap.up ? nothing : html` <span class="quiet">down</span>`}</td>
          <td>${tap.rate_mbps === null ? "—" : `${tap.rate_mbps} Mbit/s`}</td>
          <td>${dropped(tap.dropped)}</td></tr>`,
          ),
          "No machine had a tap on this host.",
        )}`,
      )}`,
    dispose: () => network.dispose(),
  };
}

function machine(id: string | null, name: string | null) {
  return id ? html`<a href="#/machines/${id}">${name ?? id}</a>` : html`<span class="quiet">nobody's</span>`;
}

function dropped(reasons: Record<string, number>): string {
  const seen = Object.entries(reasons).filter(([, frames]) => frames > 0);
  return seen.length ? seen.map(([reason, frames]) => `${frames.toLocaleString()} ${reason}`).join(", ") : "none";
}
