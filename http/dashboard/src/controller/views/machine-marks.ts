/** A machine's labels, each of which lists the machines that have it, and its protection. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Machine } from "../model";
import { ask, attempt, type Fragment } from "../../shared/ui";

export function labels(machine: Machine): Fragment {
  return html`${Object.entries(machine.labels).map(([name, value]) => {
    const label = value ? `${name}=${value}` : name;
    return html`<a class="label" href="#/machines?label=${encodeURIComponent(label)}">${label}</a> `;
  })}`;
}

export function markFacts(machine: Machine): [string, Fragment][] {
  return [
    ["Labels", html`${labels(machine)}<button @click=${() => changeLabels(machine)}>Change</button>`],
    [
      "Protected",
      html`${machine.protected ? "from being deleted and reinstalled" : "no"}
        <button @click=${() => void protect(machine)}>${machine.protected ? "Unprotect" : "Protect"}</button>`,
    ],
  ];
}

function protect(machine: Machine): Promise<unknown> {
  return attempt(() => api.patch(`/vms/${machine.id}`, { protected: !machine.protected }));
}

function changeLabels(machine: Machine): void {
  const written = Object.entries(machine.labels).map(([name, value]) => `${name}=${value}`);
  ask({
    title: `Labels of ${machine.name}`,
    fields: [{ name: "labels", label: "Labels", kind: "textarea", value: written.join("\n"), hint: "one a line: env=production" }],
    action: "Save",
    submit: async (values) => {
      const lines = (values["labels"] ?? "").split("\n").map((line) => line.trim());
      const pairs = lines.filter(Boolean).map((line) => line.split(/=(.*)/s, 2).map((part) => part.trim()));
      await api.patch(`/vms/${machine.id}`, { labels: Object.fromEntries(pairs.map(([name, value]) => [name, value ?? ""])) });
    },
  });
}

/** Where a list has been asked for by a label. */
export function chosenLabel(label: string | null): Fragment {
  return label ? html`<p class="quiet">Labelled <span class="label">${label}</span> · <a href="#/machines">all machines</a></p>` : nothing;
}
