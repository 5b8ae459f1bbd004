/** The backups of a site: what there is, when the next is made, and the way back. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, bytes, count, facts, note, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Backup, BackupSchedule, ConfigurationChange, Job, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

const WEEKDAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"];

export function siteBackups(site: Site, viewer: Viewer): SitePart {
  const backups = new Resource<Page<Backup>>((signal) => api.get("/backups", { site: site.id, page_size: 100 }, signal), ["site"]);
  const schedule = new Resource<BackupSchedule>((signal) => api.get(`/sites/${site.id}/backups/schedule`, {}, signal), ["site"]);
  return {
    draw: (now) => html`
      ${shown(
        schedule,
        (found) => html`
        <div class="head"><h2>Schedule</h2><span class="gap"></span>${viewer.may("backup.set_schedule") ? html`<button @click=${() => plan(now, found)}>Change schedule</button>` : nothing}</div>
        ${facts([
          ["Backups are made", found.enabled ? often(found) : badge("off", "Only manually, no schedule")],
          ["The next", when(found.next_run_at)],
          [
            "The last that was completed",
            html`${when(found.last_completed_at)} ${found.overdue ? badge("missing", "It is overdue") : nothing}`,
          ],
          ["Kept", `the last ${found.keep_last}, ${found.keep_daily} daily, ${found.keep_weekly} weekly, ${found.keep_monthly} monthly`],
        ])}`,
      )}
      <div class="head"><h2>Backups</h2><span class="gap"></span>${viewer.may("backup.create") ? html`<button class="primary" @click=${() => create(now)}>Back up now</button>` : nothing}</div>
      ${shown(backups, (page) =>
        table(
          ["Made", "Status", "Why", "Holds", "New in it", "Copies", ""],
          page.items.map((backup) => row(now, backup, viewer)),
          "No backups yet. The first one holds all; each after it only what has changed.",
        ),
      )}`,
    dispose: () => {
      backups.dispose();
      schedule.dispose();
    },
  };
}

function often({ frequency, hour, weekday }: BackupSchedule): string {
  if (frequency === "hourly") return "every hour";
  const at = `at ${String(hour).padStart(2, "0")}:00 UTC`;
  return frequency === "daily" ? `every day ${at}` : `every ${WEEKDAYS[weekday] ?? "week"} ${at}`;
}

function row(site: Site, backup: Backup, { may }: Viewer): TemplateResult {
  const holds = [
    ...(backup.files === null ? [] : [count(backup.files, "file")]),
    ...(backup.files_before === null ? [] : [`one before it had ${backup.files_before}`]),
    ...(backup.bytes === null ? [] : [bytes(backup.bytes)]),
    ...(backup.databases.length ? [count(backup.databases.length, "database")] : []),
  ];
  return html`<tr><td>${when(backup.created_at)}</td>
    <td>${badge(backup.status, backup.error)} ${backup.status === "pending" ? html`<a href="#/jobs/${backup.job_id}">its job</a>` : nothing}</td>
    <td>${backup.cause}</td><td>${holds.join(", ") || "—"}</td><td>${backup.added_bytes === null ? "—" : bytes(backup.added_bytes)}</td>
    <td>${backup.copies.length ? backup.copies.map((copy) => html`<div>${badge(copy.error ? "failed" : "ok", copy.error)} ${copy.target}</div>`) : "—"}</td>
    <td class="act">${
      backup.status === "completed"
        ? html`${
            may("backup.restore")
              ? html`<button @click=${() => void restore(site, backup, may("backup.configuration"))}>Restore</button>
          <button @click=${() => restorePath(site, backup)}>Restore one file…</button>`
              : nothing
          }
          ${may("backup.delete") ? html`<button class="danger" @click=${() => remove(backup)}>Delete</button>` : nothing}`
        : nothing
    }</td></tr>`;
}

function create(site: Site): void {
  order<Job>("backup.create", {
    title: `Back up ${site.domain} now?`,
    text: "Visitors notice nothing.",
    action: "Back up",
    known: { id: site.id },
    done: () => note(`${site.domain} is being backed up.`),
  });
}

const PARTS = [
  { value: "files", label: "Files: changes since the backup are lost" },
  { value: "databases", label: "Databases: each as in the backup" },
  { value: "configuration", label: "Names, redirects, protection, DNS, PHP, application, tasks and certificate" },
];

/** Shows the changes of a restored configuration before anything is ordered, to everybody who may restore it. */
async function restore(site: Site, backup: Backup, configuration: boolean): Promise<void> {
  const changes = configuration ? await api.get<ConfigurationChange[]>(`/backups/${backup.id}/configuration`).catch(() => null) : [];
  order<Job>("backup.restore", {
    title: `Restore ${site.domain}`,
    text: html`<p>As of ${new Date(backup.created_at).toLocaleString()}. What has changed since is lost in the parts that you choose.</p>
      ${changes === null ? html`<p>What the configuration would change cannot be shown.</p>` : configuration ? changed(changes) : nothing}`,
    action: "Restore",
    dangerous: true,
    wide: true,
    known: { id: backup.id },
    initial: { parts: ["files", "databases"] },
    fields: ["parts"],
    wishes: { parts: { label: "What is restored", options: PARTS.filter(({ value }) => configuration || value !== "configuration") } },
    typed: site.domain,
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function changed(changes: ConfigurationChange[]): TemplateResult {
  if (!changes.length) return html`<p>The configuration matches the backup.</p>`;
  return html`<details><summary>The configuration would change in ${count(changes.length, "place")}</summary>
    ${table(
      ["", "What", "", ""],
      changes.map((each) => html`<tr><td>${each.part}</td><td>${each.name}</td><td>${badge(each.action)}</td><td>${each.detail}</td></tr>`),
      "",
    )}</details>`;
}

function restorePath(site: Site, backup: Backup): void {
  order<Job>("backup.restore", {
    title: `Restore one file or folder of ${site.domain}`,
    text: html`As of ${new Date(backup.created_at).toLocaleString()}. Later changes below it are lost.`,
    action: "Restore",
    dangerous: true,
    known: { id: backup.id },
    fields: ["path"],
    wishes: { path: { label: "File or folder", placeholder: "public/index.html", required: true } },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function remove(backup: Backup): void {
  order("backup.delete", {
    title: "Delete this backup?",
    text: html`Of ${new Date(backup.created_at).toLocaleString()}. The others stay whole.`,
    action: "Delete",
    dangerous: true,
    known: { id: backup.id },
  });
}

function plan(site: Site, schedule: BackupSchedule): void {
  order("backup.set_schedule", {
    title: `Backup schedule of ${site.domain}`,
    action: "Save",
    wide: true,
    known: { id: site.id },
    initial: schedule,
    wishes: {
      enabled: { label: "Back up automatically" },
      hour: { label: "Hour, in UTC" },
      weekday: { kind: "select", options: WEEKDAYS.map((label, value) => ({ value: String(value), label })) },
      keep_last: { label: "Keep the last" },
      keep_daily: { label: "Keep one of each day, for days" },
      keep_weekly: { label: "Keep one of each week, for weeks" },
      keep_monthly: { label: "Keep one of each month, for months" },
    },
  });
}
