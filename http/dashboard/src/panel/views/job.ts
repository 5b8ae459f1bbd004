/** One job: its steps, and its log as it grows. */
import { html, nothing, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { api, type ApiError, failureOf } from "../../shared/api";
import { changed, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, failure, shown, when } from "../../shared/ui";
import type { Job, JobLine, JobStep, Me } from "../model";
import { siteRights, type SiteRights } from "../rights";
import { cancel, isOpen, took } from "./jobs";

export function jobView(me: Me, id: string): View {
  const job = new Resource<Job>((signal) => api.get(`/jobs/${id}`, {}, signal), ["job"]);
  let rights: SiteRights | null = null;
  /** A job of no site is seen by members of the whole account as well: the service says what they may do with sites alone. */
  const mayCancel = ({ site_id, owner_id }: Job) => {
    if (site_id === null) return me.role === "administrator" || owner_id === me.id;
    rights ??= siteRights(me, site_id);
    return rights.may("job.cancel");
  };
  const log = followedLog(id, () => void job.load());
  return {
    get title() {
      return job.value?.title ?? "Job";
    },
    draw: () => html`${shown(
      job,
      (now) => html`
      <div class="head"><a class="quiet" href="#/jobs">Jobs</a><span class="quiet">/</span><h1>${now.title}</h1>${badge(now.status)}<span class="gap"></span>
        ${isOpen(now) && mayCancel(now) ? html`<button class="danger" @click=${() => cancel(now)}>Cancel</button>` : nothing}</div>
      ${isOpen(now) ? html`<p><progress class="whole" max="100" .value=${now.progress} aria-label="Progress"></progress></p>` : nothing}
      ${now.error ? told(now.error) : nothing}
      ${facts([
        ["Kind", html`<span class="mono">${now.kind}</span>`],
        ["Number", String(now.id)],
        ...(now.site_id ? [["Of", html`<a href="#/sites/${now.site_id}">its site</a>`] as [string, TemplateResult]] : []),
        ["Asked for", when(now.created_at)],
        ["Started", when(now.started_at)],
        ["Took", took(now)],
      ])}
      <h2>Steps</h2>
      ${steps(now.steps)}`,
    )}
      <h2>Log</h2>
      ${log.draw()}`,
    dispose: () => {
      log.dispose();
      rights?.dispose();
      job.dispose();
    },
  };
}

function steps(all: JobStep[]): TemplateResult {
  return html`<ol class="steps">${repeat(
    all,
    (step) => step.position,
    (step) => html`<li>${badge(step.status)} <span>${step.title}</span> <span class="quiet">${step.started_at ? took(step) : ""}</span>
      ${step.error ? told(step.error) : nothing}</li>`,
  )}</ol>`;
}

function told(error: NonNullable<JobStep["error"]>): TemplateResult {
  return html`<p class="failure">${error.message}${error.hint ? html`<br><span class="quiet">${error.hint}</span>` : nothing}</p>`;
}

const WAIT_SECONDS = 20;
const RETRY_MILLISECONDS = 3000;

/**
 * Follows a log: each request asks for the lines after the last one shown, so that none is repeated or left out, and waits
 * until there is one. `ended` is called after the last line.
 */
function followedLog(id: string, ended: () => void): { draw(): TemplateResult; dispose(): void } {
  const lines: JobLine[] = [];
  const stopped = new AbortController();
  let error: ApiError | null = null;
  let whole = false;

  async function follow(): Promise<void> {
    while (!stopped.signal.aborted) {
      try {
        const after = lines.at(-1)?.seq ?? 0;
        // Asked before the lines: what is written behind this answer is in the next one.
        const open = isOpen(await api.get<Job>(`/jobs/${id}`, {}, stopped.signal));
        const more = await api.get<JobLine[]>(`/jobs/${id}/log`, { after, wait: open && after ? WAIT_SECONDS : 0 }, stopped.signal);
        lines.push(...more);
        error = null;
        if (!open && !more.length) {
          whole = true;
          ended();
          changed();
          return;
        }
        changed();
        if (open && !more.length && !after) await pause(RETRY_MILLISECONDS / 3);
      } catch (thrown) {
        if (stopped.signal.aborted) return;
        const problem = failureOf(thrown);
        error = problem;
        changed();
        if (problem.status === 404) return;
        if (problem.status === 401) return void dispatchEvent(new Event("signed-out"));
        await pause(RETRY_MILLISECONDS);
      }
    }
  }

  const pause = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
  void follow();
  return {
    draw: () => html`${failure(error)}
      ${
        lines.length
          ? html`<ol class="log" aria-live="polite">${repeat(
              lines,
              (line) => line.seq,
              (line) => html`<li><time datetime=${line.at}>${new Date(line.at).toLocaleTimeString()}</time> ${line.message}</li>`,
            )}</ol>`
          : html`<p class="empty">${whole ? "It has logged nothing." : "Nothing is logged yet."}</p>`
      }`,
    dispose: () => stopped.abort(),
  };
}
