/** The databases of a site, who may use them, and their exports. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { collect } from "../../shared/download";
import { ask, attempt, badge, bytes, facts, note, secret, shown, table, when, type Fragment } from "../../shared/ui";
import { DUMPS, importDump } from "../files/dumps";
import { sendingList } from "../files/sending-list";
import { jobLines } from "../files/work";
import { order } from "../form";
import type { Database, DatabaseCreated, DatabaseExport, DatabaseSecret, DatabaseUser, ExportPage, Job, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

const DUMP_NAMES = ".sql,.gz,.bz2,.xz";
const ACCESS = { label: "May", hint: "" };

export function siteDatabases(site: Site, viewer: Viewer): SitePart {
  const { may } = viewer;
  const query = { site: site.id, page_size: 100 };
  const databases = new Resource<Page<Database>>((signal) => api.get("/databases", query, signal), ["site"]);
  const users = new Resource<Page<DatabaseUser>>((signal) => api.get("/database-users", query, signal), ["site"]);
  const exports = new Resource<Page<DatabaseExport>>((signal) => api.get("/databases/exports", { page_size: 100 }, signal), ["site"]);
  const own = (page: Page<DatabaseExport>) =>
    page.items.filter((each) => databases.value?.items.some((database) => database.id === each.database_id));
  return {
    draw: (now) => html`
      <div class="head"><h2>Databases</h2><span class="gap"></span>${may("database.create") ? html`<button class="primary" @click=${() => create(now)}>Create database</button>` : nothing}</div>
      ${jobLines(now.id).map((line) => line.draw())}
      ${sendingList(now.id)}
      ${shown(databases, (page) =>
        table(
          ["Name", "Status", "Engine", "Size", "Programs connect at", ""],
          page.items.map((database) => databaseRow(now, database, viewer)),
          "No databases yet.",
        ),
      )}
      <div class="head"><h2>Users</h2><span class="gap"></span>
        ${databases.value?.items.length && may("database_user.create") ? html`<button @click=${() => addUser(now, databases.value?.items ?? [])}>Create user</button>` : nothing}</div>
      ${shown(users, (page) =>
        table(
          ["Name", "Engine", "May use", ""],
          page.items.map((user) => userRow(user, databases.value?.items ?? [], viewer)),
          "No database users yet.",
        ),
      )}
      ${shown(exports, (page) => {
        const found = own(page);
        return found.length
          ? html`<h2>Exports</h2>${table(
              ["Database", "Made", "Size", "Kept until", ""],
              found.map((made) => exportRow(made, viewer)),
              "",
            )}`
          : nothing;
      })}`,
    dispose: () => {
      databases.dispose();
      users.dispose();
      exports.dispose();
    },
  };
}

function databaseRow(site: Site, database: Database, { may }: Viewer): TemplateResult {
  return html`<tr><td class="mono">${database.name}</td><td>${badge(database.status, database.problem)}</td><td>${database.engine}</td>
    <td>${database.size === null ? "—" : bytes(database.size)}</td><td class="mono">${database.socket}</td>
    <td class="act">${may("database.export") ? html`<button @click=${() => exportDatabase(database)}>Export</button>` : nothing}
      ${may("database.import") ? html`<button @click=${() => load(database)}>Import</button>` : nothing}
      ${may("database.import") && may("file.upload") && may("file.mkdir") ? html`<label class="button">Upload a dump<input type="file" hidden accept=${DUMP_NAMES} aria-label="Dump for ${database.name}" @change=${(event: Event) => chosen(event, site, database)}></label>` : nothing}
      ${may("database.delete") ? html`<button class="danger" @click=${() => remove(database)}>Delete</button>` : nothing}</td></tr>`;
}

function userRow(user: DatabaseUser, databases: Database[], { may }: Viewer): TemplateResult {
  return html`<tr><td class="mono">${user.name} ${user.problem ? badge("failed", user.problem) : nothing}</td><td>${user.engine}</td>
    <td>${user.grants.map(
      (grant) => html`<div>${grant.database} <span class="quiet">${grant.access.replaceAll("_", " ")}</span>
        ${may("database_user.revoke") ? html`<button class="plain" aria-label="Revoke ${user.name}'s access to ${grant.database}" @click=${() => revoke(user, grant)}>×</button>` : nothing}</div>`,
    )}</td>
    <td class="act">${may("database_user.grant") ? html`<button @click=${() => grantMore(user, databases)}>Grant</button>` : nothing}
      ${may("database_user.reset_password") ? html`<button @click=${() => resetPassword(user)}>Reset password</button>` : nothing}
      ${may("database_user.delete") ? html`<button class="danger" @click=${() => removeUser(user)}>Delete</button>` : nothing}</td></tr>`;
}

function exportRow(made: DatabaseExport, { may }: Viewer): TemplateResult {
  return html`<tr><td class="mono">${made.database}</td><td>${when(made.created_at)}</td>
    <td>${made.ready && made.size !== null ? bytes(made.size) : badge("pending")}</td><td>${when(made.expires_at)}</td>
    <td class="act">${made.ready && may("export.download") ? html`<button @click=${() => void attempt(() => download(made))}>Download</button>` : nothing}
      ${may("export.delete") ? html`<button class="danger" @click=${() => removeExport(made)}>Delete</button>` : nothing}</td></tr>`;
}

async function download(made: DatabaseExport): Promise<void> {
  const page = (offset: number) => api.get<ExportPage>(`/databases/exports/${made.id}/download`, { offset });
  await collect(`${made.database}.sql.gz`, page);
}

function create(site: Site): void {
  order<DatabaseCreated>("database.create", {
    title: "Create database",
    action: "Create",
    known: { site_id: site.id },
    wishes: { user: { label: "With a user called", hint: "Its password is shown once. Left empty, there is none yet." } },
    done: ({ database, login }) => (login ? shownOnce(login, database) : void note(`${database.name} was created.`)),
  });
}

/** What a program needs to connect; the password is shown only once. */
function shownOnce({ user, password }: DatabaseSecret, database?: Database): Fragment {
  return html`${facts([
    ...(database
      ? [
          ["Database", html`<span class="mono">${database.name}</span>`] as [string, Fragment],
          ["Socket", html`<span class="mono">${database.socket}</span>`] as [string, Fragment],
        ]
      : []),
    ["User", html`<span class="mono">${user.name}</span>`],
  ])}<p>The password. It is shown only once.</p>${secret(password)}`;
}

function exportDatabase(database: Database): void {
  order<Job>("database.export", {
    title: `Export ${database.name}?`,
    action: "Export",
    known: { id: database.id },
    done: () => note(`${database.name} is being exported.`),
  });
}

function load(database: Database): void {
  order<Job>("database.import", {
    title: `Import into ${database.name}`,
    text: "It runs as the site's own account, and reaches nothing but this database.",
    action: "Import",
    known: { id: database.id },
    wishes: {
      path: { label: "A file of the site", placeholder: "backup.sql.gz", hint: "SQL; plain, or compressed by gzip, bzip2 or xz" },
      export: { label: "Or the number of an export", hint: "Of a database of this site and engine" },
      replace: { label: "Empty the database first" },
    },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function chosen(event: Event, site: Site, database: Database): void {
  const input = event.target as HTMLInputElement;
  const [file] = Array.from(input.files ?? []);
  input.value = "";
  if (!file) return;
  ask({
    title: `Import ${file.name} into ${database.name}`,
    text: `${bytes(file.size)} are uploaded to ${DUMPS} of the site, and imported then, also if you leave this page. The file stays there: delete it in Files afterwards.`,
    action: "Upload and import",
    fields: [{ name: "replace", label: "Empty the database first", kind: "checkbox" }],
    submit: async ({ replace }) => importDump(site, database, file, replace === "on"),
  });
}

function remove(database: Database): void {
  order("database.delete", {
    title: `Delete ${database.name}`,
    text: "With all its content, permanently.",
    action: "Delete",
    dangerous: true,
    known: { id: database.id },
    typed: database.name,
    typedAs: "confirm",
  });
}

function options(databases: Database[]): { value: string; label: string }[] {
  return databases.map(({ id, name }) => ({ value: id, label: name }));
}

function addUser(site: Site, databases: Database[]): void {
  order<DatabaseSecret>("database_user.create", {
    title: `Create a database user for ${site.domain}`,
    action: "Create",
    wishes: { database_id: { label: "Database", kind: "select", options: options(databases) }, access: ACCESS },
    done: (made) => shownOnce(made),
  });
}

function grantMore(user: DatabaseUser, databases: Database[]): void {
  const others = databases.filter((each) => each.engine === user.engine);
  order("database_user.grant", {
    title: `Grant ${user.name} access to a database`,
    action: "Grant",
    known: { id: user.id },
    wishes: { database_id: { label: "Database", kind: "select", options: options(others) }, access: ACCESS },
  });
}

function revoke(user: DatabaseUser, grant: DatabaseUser["grants"][number]): void {
  order("database_user.revoke", {
    title: `Revoke ${user.name}'s access to ${grant.database}?`,
    action: "Revoke",
    dangerous: true,
    known: { id: user.id, database: grant.database_id },
  });
}

function resetPassword(user: DatabaseUser): void {
  ask({
    title: `Reset the password of ${user.name}`,
    text: "The old password stops working at once.",
    action: "Reset",
    dangerous: true,
    submit: async () => shownOnce(await api.post<DatabaseSecret>(`/database-users/${user.id}/password`)),
  });
}

function removeUser(user: DatabaseUser): void {
  order("database_user.delete", { title: `Delete ${user.name}?`, action: "Delete", dangerous: true, known: { id: user.id } });
}

function removeExport(made: DatabaseExport): void {
  order("export.delete", { title: `Delete the export of ${made.database}?`, action: "Delete", dangerous: true, known: { id: made.id } });
}
