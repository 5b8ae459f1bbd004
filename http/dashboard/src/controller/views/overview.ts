/** The state of everything at a glance, and what happened last. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import type { Me, Overview, Task } from "../model";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, shown, size } from "../../shared/ui";
import { FirstSteps } from "./first-steps";
import { tasksTable } from "./tasks";

export function overviewView(me: Me): View {
  const overview = new Resource<Overview>((signal) => api.get("/overview", {}, signal), ["vm", "node", "task", "alert"]);
  const tasks = new Resource<Page<Task>>((signal) => api.get("/tasks", { page_size: 10 }, signal), ["task"]);
  let firstSteps: FirstSteps | null = null;
  const beforeMachines = (now: Overview) => {
    if (me.role !== "administrator" || Object.values(now.vms).some((count) => count > 0)) return nothing;
    firstSteps ??= new FirstSteps();
    return firstSteps.draw(now);
  };
  return {
    title: "Overview",
    draw: () => html`
      <h1>Overview</h1>
      ${shown(
        overview,
        (now) => html`<div class="tiles">
        ${tile("Machines", "#/machines", now.vms)}
        ${me.role === "administrator" ? tile("Nodes", "#/nodes", now.nodes) : nothing}
        ${tile("Open tasks", "#/tasks", now.tasks)}
        ${tile("Alerts", "#/alerts", { open: now.alerts })}
      </div>
      ${
        now.capacity
          ? html`<section class="bars">
        ${bar("Processors", now.capacity.vcpus_used, now.capacity.vcpus, String)}
        ${bar("Memory", now.capacity.memory_used_mib, now.capacity.memory_mib, size)}
        ${bar("Disk", now.capacity.disk_used_gib, now.capacity.disk_gib, (gibibytes) => size(gibibytes * 1024))}
        ${
          now.disk
            ? bar("Disk of the controller", now.disk.size_gib - now.disk.free_gib, now.disk.size_gib, (gibibytes) => size(gibibytes * 1024))
            : nothing
        }
        ${now.disk?.changes_refused ? html`<p class="error">The controller's disk is full: changes are refused.</p>` : nothing}
      </section>`
          : nothing
      }
      ${beforeMachines(now)}`,
      )}
      <h2>Latest tasks</h2>
      ${shown(tasks, (page) => tasksTable(page.items))}`,
    dispose: () => {
      overview.dispose();
      tasks.dispose();
      firstSteps?.dispose();
    },
  };
}

function tile(label: string, href: string, counts: Record<string, number>): TemplateResult {
  const entries = Object.entries(counts).filter(([name, count]) => count && name !== "total");
  const total = counts["total"] ?? entries.reduce((sum, [, count]) => sum + count, 0);
  return html`<a class="tile" href=${href}><span>${label}</span><b>${total}</b>
    <small>${entries.map(([name, count]) => html`<span>${badge(name)} ${count}</span>`)}</small></a>`;
}

function bar(label: string, used: number, total: number, text: (value: number) => string): TemplateResult {
  return html`<label>${label}<meter min="0" max=${total || 1} high=${total * 0.85} .value=${used}></meter>
    <span class="quiet">${text(used)} of ${text(total)}</span></label>`;
}
