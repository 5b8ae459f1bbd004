/** A machine's transfer: this month against its allowance, the last year by month, and the decisions about it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { months } from "../charts";
import type { Decision, MachineTraffic, Usage } from "../networking";
import type { Part } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, bytes, count, shown, table, when, type Fragment } from "../../shared/ui";

/** Figures grow without an event, about once a minute. */
export const READING_MILLISECONDS = 60_000;

export function machineTraffic(id: string): Part {
  const traffic = new Resource<MachineTraffic>((signal) => api.get(`/vms/${id}/traffic`, {}, signal), ["vm"]);
  const timer = setInterval(() => traffic.refresh(), READING_MILLISECONDS);
  return {
    draw: () => html`
      <div class="head"><h2>Traffic</h2>${traffic.value && traffic.value.position.state !== "unlimited" ? badge(traffic.value.position.state) : nothing}</div>
      ${shown(
        traffic,
        (now) => html`
        <div class="traffic"><div class="panel">
          <p>${allowance(now.position)}</p>
          ${now.position.allowance_bytes === null ? nothing : html`<p class="quiet">${consequence(now.position)}</p>`}
          <p class="quiet">${certainty(now.position)}</p></div>
          ${months(now.months)}</div>
        ${now.history.length ? decisionsTable(now.history, false) : nothing}`,
      )}`,
    dispose: () => {
      clearInterval(timer);
      traffic.dispose();
    },
  };
}

/** What is used of what is allowed. */
export function allowance(usage: Usage): Fragment {
  if (usage.allowance_bytes === null) return html`<b>${bytes(usage.counted_bytes)}</b> <span class="quiet">no allowance</span>`;
  const percent = usage.percent ?? 0;
  return html`<meter min="0" max="100" low="85" high="99.9" optimum="0" .value=${Math.min(100, percent)} aria-label="Used of the allowance"></meter>
    <b>${bytes(usage.counted_bytes)}</b> <span class="quiet">of ${bytes(usage.allowance_bytes)}, ${percent.toLocaleString(undefined, { maximumFractionDigits: 1 })} %</span>`;
}

function consequence(position: MachineTraffic["position"]): string {
  const counted = position.direction === "both" ? "Sent and received traffic counts" : "What it sends counts";
  switch (position.action) {
    case "throttle":
      return `${counted}; past the allowance it is held to ${position.throttle_mbps} Mbit/s until the month ends.`;
    case "suspend":
      return `${counted}; past the allowance its traffic stops until the month ends.`;
    default:
      return `${counted}; passing the allowance is reported, and changes nothing.`;
  }
}

/** Why the figure may read low: what was sent between the last reading and a restart was not seen. */
export function certainty(figure: { resets: number; samples: number; first_at: string | null }): Fragment {
  if (!figure.samples) return "Nothing was counted yet.";
  return html`Lower bound: ${count(figure.samples, "reading")} since ${when(figure.first_at)}${
    figure.resets ? html`, and counters that were reset ${count(figure.resets, "time")}` : nothing
  }.`;
}

export function decisionsTable(decisions: Decision[], machines: boolean): TemplateResult {
  return table(
    [...(machines ? ["Machine"] : []), "When", "Month", "Decision", "Used", "Why"],
    decisions.map(
      (decision) => html`<tr>
    ${machines ? html`<td><a href="#/machines/${decision.vm_id}">${decision.vm_name}</a></td>` : nothing}
    <td>${when(decision.at)}</td><td>${decision.period}</td><td>${badge(decision.action)}</td>
    <td>${bytes(decision.counted_bytes)}${decision.allowance_bytes === null ? nothing : html` <span class="quiet">of ${bytes(decision.allowance_bytes)}</span>`}</td>
    <td class="wide">${decision.reason}</td></tr>`,
    ),
    "No decisions.",
  );
}
