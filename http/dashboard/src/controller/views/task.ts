/** One task with its log, as it grows. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { listen } from "../../shared/changes";
import type { Task, TaskEvent } from "../model";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, shown, when } from "../../shared/ui";
import { abort, open, progress, resourceLink } from "./tasks";

export function taskView(id: string): View {
  const task = new Resource<Task>((signal) => api.get(`/tasks/${id}`, {}, signal), ["task"]);
  const log: TaskEvent[] = [];
  const lines = new Resource<TaskEvent[]>(async (signal) => {
    const after = log.at(-1)?.position ?? 0;
    const more = await api.get<TaskEvent[]>(`/tasks/${id}/events`, { after }, signal);
    log.push(...more.filter((line) => line.position > (log.at(-1)?.position ?? 0)));
    return log;
  });
  const unlisten = listen(["task", "task_log"], () => lines.refresh());
  return {
    get title() {
      return task.value?.op ?? "Task";
    },
    draw: () => html`${shown(
      task,
      (now) => html`
      <div class="head"><h1>${now.op} <small>${resourceLink(now)}</small></h1>${badge(now.status)}<span class="gap"></span>
        ${open(now) ? html`<button class="danger" ?disabled=${now.cancel_requested} @click=${() => abort(now)}>Abort</button>` : nothing}</div>
      <p class="wide">${progress(now)}</p>
      ${facts([
        ["Asked for", when(now.created_at)],
        ["Started", when(now.started_at)],
        ["Ended", when(now.ended_at)],
      ])}`,
    )}
      <h2>Log</h2>
      ${shown(
        lines,
        (all) =>
          html`<ol class="log" aria-live="polite">${all.map(
            (line) => html`<li class=${line.level}>
        <time datetime=${line.at}>${new Date(line.at).toLocaleTimeString()}</time> ${line.message}</li>`,
          )}</ol>`,
      )}`,
    dispose: () => {
      unlisten();
      task.dispose();
      lines.dispose();
    },
  };
}
