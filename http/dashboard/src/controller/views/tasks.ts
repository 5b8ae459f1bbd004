/** Tasks: what the service was asked to do on nodes, and how far it is. */
import { html, nothing, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { api } from "../../shared/api";
import type { Task } from "../model";
import type { View } from "../../shared/page";
import { attempt, badge, when } from "../../shared/ui";
import { list } from "../../shared/list";

export function tasksView(): View {
  return list<Task>({
    title: "Tasks",
    path: "/tasks",
    kinds: ["task"],
    filters: [
      { name: "status", label: "Status", options: ["queued", "running", "succeeded", "failed", "cancelled"] },
      { name: "resource_kind", label: "Of", options: ["vm", "node", "image"] },
    ],
    rows: tasksTable,
  });
}

export function tasksTable(tasks: Task[]): TemplateResult {
  if (!tasks.length) return html`<p class="empty">No tasks.</p>`;
  return html`<div class="scroll"><table>
    <thead><tr><th scope="col">Task</th><th scope="col">Of</th><th scope="col">Status</th><th scope="col">Progress</th><th scope="col">Started</th><th></th></tr></thead>
    <tbody>${repeat(
      tasks,
      (task) => task.id,
      (task) => html`<tr>
      <td><a href="#/tasks/${task.id}">${task.op}</a></td>
      <td>${resourceLink(task)}</td>
      <td>${badge(task.status, task.error_message)}</td>
      <td class="wide">${progress(task)}</td>
      <td>${when(task.created_at)}</td>
      <td class="act">${open(task) ? html`<button ?disabled=${task.cancel_requested} @click=${() => abort(task)}>Abort</button>` : nothing}</td>
    </tr>`,
    )}</tbody>
  </table></div>`;
}

/** How far what is under way is; nothing where nothing is. */
export function underWay(tasks: readonly Task[]): TemplateResult | typeof nothing {
  const task = tasks.find(open);
  return task ? html`<p class="wide"><a href="#/tasks/${task.id}">${task.op}</a> ${progress(task)}</p>` : nothing;
}

export function progress(task: Task): TemplateResult {
  if (open(task)) {
    return html`<progress max="100" .value=${task.progress} aria-label="Progress"></progress>
      <span class="quiet">${task.cancel_requested ? "aborting" : task.message}</span>`;
  }
  return html`<span class="quiet">${task.error_message ?? task.message}</span>`;
}

export function resourceLink(task: Task): TemplateResult {
  const place = { vm: "machines", node: "nodes", image: null, volume: null }[task.resource_kind];
  return place ? html`<a href="#/${place}/${task.resource_id}">${task.resource_name}</a>` : html`${task.resource_name}`;
}

export function open(task: Task): boolean {
  return task.status === "queued" || task.status === "running";
}

export function abort(task: Task): void {
  void attempt(() => api.post(`/tasks/${task.id}/cancel`), "Asked to abort.");
}
