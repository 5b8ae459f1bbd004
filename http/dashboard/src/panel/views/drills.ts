/** Drills: backups that were restored where nobody reaches them, compared with the site as it was, and removed. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, count, table, when } from "../../shared/ui";
import { order, siteChoice } from "../form";
import type { Drill, DrillPlan, Job, Site } from "../model";

export function drillsView(): View {
  const plan = new Resource<DrillPlan>((signal) => api.get("/backups/drills/plan", {}, signal), ["job"]);
  const drills = list<Drill>({
    title: "Restore drills",
    path: "/backups/drills",
    kinds: ["job"],
    filters: [{ name: "status", label: "Status", options: ["pending", "succeeded", "failed"] }],
    buttons: () => html`${plan.value ? html`<button @click=${() => change(plan.value as DrillPlan)}>Change schedule</button>` : nothing}
      <button class="primary" @click=${() => void attempt(start)}>Start drill</button>`,
    before:
      () => html`<p class="quiet">The newest backup of a site is restored where nobody reaches it, compared with what was backed up, and
      removed. ${planned(plan.value)}</p>`,
    rows: (all) =>
      table(["Site", "Status", "Started by", "Compared", "Started", "Ended", ""], all.map(row), "No restore drill has run yet."),
  });
  return {
    ...drills,
    dispose: () => {
      drills.dispose?.();
      plan.dispose();
    },
  };
}

function planned(plan: DrillPlan | null): TemplateResult | typeof nothing {
  if (!plan) return nothing;
  return plan.frequency === "weekly" ? html`Runs weekly, next ${when(plan.next_run_at)}.` : html`Does not run automatically.`;
}

function row(drill: Drill): TemplateResult {
  return html`<tr><td>${drill.domain}</td><td>${badge(drill.status, drill.error)}</td>
    <td>${drill.cause === "manual" ? "an administrator" : "the plan"}</td>
    <td>${compared(drill)}${drill.error ? html`<div class="failure">${drill.error}</div>` : nothing}</td>
    <td>${when(drill.created_at)}</td><td>${when(drill.ended_at)}</td><td class="act"><a href="#/jobs/${drill.job_id}">its job</a></td></tr>`;
}

/** What was found to be as it was backed up; a drill under way or one that failed may have come to none of it. */
function compared({ status, entries, databases }: Drill): string {
  const done = status === "succeeded";
  const parts = [
    ...(done || entries ? [`${entries.toLocaleString()} files, folders and links`] : []),
    ...(done || databases ? [count(databases, "database")] : []),
  ];
  return parts.join("; ") || (status === "failed" ? "nothing" : "nothing yet");
}

async function start(): Promise<void> {
  const sites = siteChoice(await api.get<Page<Site>>("/sites", { page_size: 200, sort: "domain" }));
  const any = { value: "", label: "any site" };
  order<Job>("backup.drill_start", {
    title: "Start a restore drill",
    text: "It takes disk for a copy of the site while it goes on. Visitors notice nothing.",
    action: "Start",
    wishes: {
      site: {
        label: "Id of the site",
        hint: "Whose newest backup is restored; any site's, if left empty",
        ...sites,
        ...(sites.options ? { hint: "Whose newest backup is tried", options: [any, ...sites.options] } : {}),
      },
    },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function change({ frequency }: DrillPlan): void {
  order("backup.set_drill_plan", { title: "Automatic drills", action: "Save", initial: { frequency } });
}
