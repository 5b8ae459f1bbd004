/** Jobs: slow work that was asked for, what it is doing, and what became of it. */
import { html, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { api } from "../../shared/api";
import { list } from "../../shared/list";
import { changed, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, when } from "../../shared/ui";
import type { Job } from "../model";

export function jobsView(): View {
  return list<Job>({
    title: "Jobs",
    path: "/jobs",
    kinds: ["job"],
    searchable: true,
    filters: [{ name: "status", label: "Status", options: ["queued", "running", "succeeded", "failed", "cancelled"] }],
    rows: jobsTable,
  });
}

export function jobsTable(jobs: Job[]): TemplateResult {
  if (!jobs.length) return html`<p class="empty">No jobs. What takes a while is done as one, and is found here.</p>`;
  return html`<div class="scroll"><table>
    <thead><tr><th scope="col">Job</th><th scope="col">Status</th><th scope="col">Progress</th><th scope="col">Asked for</th><th scope="col">Took</th></tr></thead>
    <tbody>${repeat(
      jobs,
      (job) => job.id,
      (job) => html`<tr>
      <td><a href="#/jobs/${job.id}">${job.title}</a><div class="quiet mono">${job.kind} · ${job.id}</div></td>
      <td>${badge(job.status, job.error?.message)}</td>
      <td class="wide">${progress(job)}</td>
      <td>${when(job.created_at)}</td>
      <td>${took(job)}</td>
    </tr>`,
    )}</tbody>
  </table></div>`;
}

export function isOpen(job: Job): boolean {
  return job.status === "queued" || job.status === "running";
}

/** How far an open job is and what it does now; of one that has failed, why. */
export function progress(job: Job): TemplateResult {
  if (!isOpen(job)) return html`<span class="quiet">${job.error?.message ?? ""}</span>`;
  const now = job.steps.find((step) => step.status === "running");
  return html`<progress max="100" .value=${job.progress} aria-label="Progress"></progress>
    <span class="quiet">${now?.title ?? (job.status === "queued" ? "waits for its turn" : "")}</span>`;
}

export function took({ started_at, ended_at }: Pick<Job, "started_at" | "ended_at">): string {
  if (!started_at) return "—";
  const seconds = Math.max(0, (new Date(ended_at ?? Date.now()).getTime() - new Date(started_at).getTime()) / 1000);
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function cancel(job: Job): void {
  void attempt(() => api.post(`/jobs/${job.id}/cancel`), "Cancelled: the step that it was at gives up.");
}

/** A job that somebody waits for, in a line; `ended` is called once, when there is nothing more to wait for. */
export function jobLine(first: Job, ended: (job: Job) => void): { draw(): TemplateResult; dispose(): void } {
  let told = false;
  const job = new Resource<Job>(
    async (signal) => {
      const now = await api.get<Job>(`/jobs/${first.id}`, {}, signal);
      if (!isOpen(now) && !told) {
        told = true;
        ended(now);
        changed();
      }
      return now;
    },
    ["job"],
  );
  return {
    draw: () => {
      const now = job.value ?? first;
      return html`<p class="job-line">${badge(now.status, now.error?.message)} <a href="#/jobs/${now.id}">${now.title}</a> ${progress(now)}</p>`;
    },
    dispose: () => job.dispose(),
  };
}
