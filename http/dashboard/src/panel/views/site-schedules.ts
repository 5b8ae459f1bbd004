/** The tasks of a site that are done at certain times, and what became of them. */
import { html, nothing } from "lit-html";
import { api, type Page } from "../../shared/api";
import { changed } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, badge, note, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Schedule, ScheduleRun, ScheduleRunLog, Site } from "../model";
import { rows } from "./rows";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

const WISHES = {
  kind: { label: "Type", hint: "A script of the site, or a page of it" },
  path: { label: "Path", placeholder: "public/cron.php" },
  args: { label: "Arguments", hint: "One a line" },
  cron: { label: "When", placeholder: "*/15 * * * *", hint: "Minute, hour, day, month, weekday" },
  time_limit_seconds: { label: "Longest it runs, in seconds" },
};

export function siteSchedules(site: Site, { may }: Viewer): SitePart {
  let runs: Resource<Page<ScheduleRun> | ScheduleRun[]> | null = null;
  let of: Schedule | null = null;
  const look = (schedule: Schedule) => {
    runs?.dispose();
    of = schedule;
    runs = new Resource((signal) => api.get(`/schedules/${schedule.id}/runs`, {}, signal), ["site"]);
    changed();
  };
  const tasks = rows<Schedule>({
    title: "Scheduled tasks",
    text: "They run with the site's account, within its limits, and not while the site is suspended.",
    path: `/sites/${site.id}/schedules`,
    heads: ["Name", "What", "When", "Next", ""],
    buttons: (now) => (may("schedule.create") ? html`<button class="primary" @click=${() => add(now)}>Create task</button>` : nothing),
    row: (task) => html`<tr><td>${task.name}</td><td>${task.kind} <span class="mono">${task.path}</span></td>
      <td class="mono">${task.cron} <span class="quiet">${task.time_zone}</span></td><td>${task.enabled ? when(task.next_run_at) : badge("paused")}</td>
      <td class="act"><button @click=${() => look(task)}>Runs</button> ${may("schedule.run") ? html`<button @click=${() => runNow(task)}>Run now</button>` : nothing}
        ${may("schedule.update") ? html`<button @click=${() => change(task)}>Change</button>` : nothing}
        ${may("schedule.delete") ? html`<button class="danger" @click=${() => remove(task)}>Delete</button>` : nothing}</td></tr>`,
    empty: "No scheduled tasks.",
  });
  return {
    draw: (now) => html`${tasks.draw(now)}
      ${
        runs && of
          ? html`<h2>Runs of ${of.name}</h2>${shown(runs, (all) =>
              table(
                ["Due", "Status", "Started", "Ended", "Exit status", ""],
                (Array.isArray(all) ? all : all.items).map(
                  (
                    run,
                  ) => html`<tr><td>${run.due_at ? when(run.due_at) : "asked for"}</td><td>${badge(run.status)}</td><td>${when(run.started_at)}</td>
                <td>${when(run.ended_at)}</td><td>${run.exit_status ?? "—"}</td>
                <td class="act">${may("schedule.log") ? html`<button @click=${() => void read(run)}>Output</button>` : nothing}</td></tr>`,
                ),
                "It has not run yet.",
              ),
            )}`
          : ""
      }`,
    dispose: () => {
      tasks.dispose?.();
      runs?.dispose();
    },
  };
}

async function read(run: ScheduleRun): Promise<void> {
  const log = await api.get<ScheduleRunLog>(`/schedules/${run.schedule_id}/runs/${run.id}`);
  ask({
    title: "Its output",
    wide: true,
    text: html`<pre class="answer">${log.output || "Nothing."}</pre>`,
    action: "Close",
    submit: async () => undefined,
  });
}

function add(site: Site): void {
  order("schedule.create", {
    title: `Create a task for ${site.domain}`,
    action: "Create",
    wide: true,
    known: { id: site.id },
    wishes: WISHES,
  });
}

function change(task: Schedule): void {
  order("schedule.update", {
    title: `Change ${task.name}`,
    action: "Save",
    wide: true,
    known: { id: task.id },
    initial: task,
    wishes: WISHES,
  });
}

function runNow(task: Schedule): void {
  order("schedule.run", {
    title: `Run ${task.name} now?`,
    action: "Run now",
    known: { id: task.id },
    done: () => note(`${task.name} is running.`),
  });
}

function remove(task: Schedule): void {
  order("schedule.delete", {
    title: `Delete ${task.name}?`,
    text: "It no longer runs, and its past runs are deleted.",
    action: "Delete",
    dangerous: true,
    known: { id: task.id },
  });
}
