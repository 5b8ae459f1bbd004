/** Imports: sites of other hosts, uploaded as an archive or fetched by SSH, gone through item by item, and applied. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type ApiError, type Page, failureOf } from "../../shared/api";
import { list } from "../../shared/list";
import { changed, go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, bytes, count, facts, failure, given, shown, table, when, type Fragment } from "../../shared/ui";
import { sendParts } from "../files/parts";
import { order } from "../form";
import type { Import, ImportPlan, Job, Me, PlanItem, SshImport } from "../model";
import { perform } from "../operations";

export function importsView(): View {
  const imports = list<Import>({
    title: "Imports",
    path: "/imports",
    kinds: ["job"],
    searchable: true,
    buttons: () => html`
      <button @click=${fetchBySsh}>Fetch by SSH</button>
      <label class="button primary">Upload archive<input type="file" hidden @change=${(event: Event) => {
        const input = event.target as HTMLInputElement;
        const [file] = input.files ?? [];
        if (file) void upload(file);
        input.value = "";
      }}></label>`,
    before: sendingLine,
    rows: (found) =>
      table(
        ["Archive", "", "Format", "Size", "Started"],
        found.map(
          (one) => html`<tr><td><a href="#/imports/${one.id}">${one.name}</a></td><td>${badge(one.status, one.problem)}</td>
            <td>${one.format ?? "—"}</td><td>${bytes(one.size)}</td><td>${when(one.created_at)}</td></tr>`,
        ),
        "No imports. A backup of cPanel, Plesk, DirectAdmin, Hestia or Virtualmin, or a packed site, becomes sites here.",
      ),
  });
  return imports;
}

/** It goes on while other pages of the dashboard are looked at. */
let sending: { file: File; sent: number; error: ApiError | null } | null = null;

function sendingLine(): Fragment {
  if (!sending) return nothing;
  const { file, sent, error } = sending;
  return error
    ? failure(error)
    : html`<p class="job-line">${file.name} <progress max=${file.size || 1} .value=${sent} aria-label="Uploaded"></progress></p>`;
}

async function upload(file: File): Promise<void> {
  if (sending && !sending.error) return;
  const now = { file, sent: 0, error: null as ApiError | null };
  sending = now;
  changed();
  try {
    const { items } = await api.get<Page<Import>>("/imports", { status: "uploading", page_size: "200" });
    // One whose file is chosen again after the page was closed goes on from what had come.
    const opened =
      items.find((each) => each.name === file.name && each.size === file.size) ??
      (await api.post<Import>("/imports/upload", { name: file.name, size: file.size }));
    const place = `/imports/${opened.id}/upload`;
    const sha256 = await sendParts(place, file, opened, new AbortController().signal, (sent) => {
      now.sent = sent;
      changed();
    });
    await api.post(`${place}/finish`, { sha256 });
    sending = null;
    go(`/imports/${opened.id}`);
  } catch (thrown) {
    now.error = failureOf(thrown);
  }
  changed();
}

/** First the host's key is confirmed, then the credentials are entered: an unconfirmed host gets no secret. */
function fetchBySsh(): void {
  ask({
    title: "Fetch a site by SSH",
    text: "The host's keys are shown first: compare them with what its provider says. Nothing is sent to it before.",
    fields: [
      { name: "host", label: "Host", required: true },
      { name: "port", label: "Port", kind: "number", value: "22", least: 1, most: 65535 },
      { name: "user", label: "Account", required: true, hint: "of that host" },
      { name: "domain", label: "Domain", required: true, hint: "that the site gets here" },
      { name: "folders", label: "Folders", kind: "textarea", required: true, hint: "one a line; the document root first" },
    ],
    action: "Show host keys",
    wide: true,
    submit: async (values) => {
      const folders = (values["folders"] ?? "").split("\n").map((line) => line.trim());
      const from = { ...given(values, ["host", "user", "domain"]), port: Number(values["port"] || 22), folders: folders.filter(Boolean) };
      const { host_keys } = await perform<SshImport>("import.ssh", from);
      return table(
        ["Key", "Fingerprint", ""],
        host_keys.map(
          (key) => html`<tr><td>${key.type}</td><td class="mono">${key.fingerprint}</td>
            <td><button @click=${() => fetchFrom(from, key.fingerprint)}>Confirm</button></td></tr>`,
        ),
        "It shows none.",
      );
    },
  });
}

function fetchFrom(from: object, host_key: string): void {
  order<SshImport>("import.ssh", {
    title: "Fetch a site by SSH",
    text: "By a password, or by a private key without a passphrase. They are forgotten as soon as the files have come.",
    known: { ...from, host_key },
    fields: ["password", "private_key", "database", "database_user", "database_password", "database_host"],
    action: "Fetch",
    wide: true,
    done: ({ begun: started }) => {
      if (started) go(`/imports/${started.id}`);
    },
  });
}

export function importView(me: Me, id: string): View {
  const state = new Resource<ImportPlan>((signal) => api.get(`/imports/${id}`, {}, signal), ["job"]);
  const choices = new Map<string, boolean>();
  return {
    get title() {
      return state.value?.name ?? "Import";
    },
    draw: () => html`
      <div class="head"><a class="quiet" href="#/imports">Imports</a><span class="quiet">/</span><h1>${state.value?.name ?? "Import"}</h1>
        ${state.value ? badge(state.value.status, state.value.problem) : nothing}<span class="gap"></span>
        ${state.value ? buttons(me, state.value, choices) : nothing}</div>
      ${shown(state, (now) => drawn(now, choices))}`,
    dispose: () => state.dispose(),
  };
}

function buttons(me: Me, now: ImportPlan, choices: Map<string, boolean>): TemplateResult {
  const open = now.plan.length > 0 && (now.status === "ready" || now.status === "failed");
  return html`<button class="danger" @click=${() => remove(now)}>Delete</button>
    ${open ? html`<button class="primary" @click=${() => apply(me, now, choices)}>${now.sites.length ? "Apply again" : "Apply"}</button>` : nothing}`;
}

function drawn(now: ImportPlan, choices: Map<string, boolean>): TemplateResult {
  return html`
    ${now.problem ? html`<p class="failure">${now.problem}</p>` : nothing}
    ${facts([
      ["Format", now.format ?? "—"],
      ["Size", bytes(now.size)],
      ["Job", now.job_id === null ? "—" : html`<a href="#/jobs/${now.job_id}">${now.job_id}</a>`],
      ["Started", when(now.created_at)],
    ])}
    ${
      now.sites.length
        ? html`<div class="head"><h2>${count(now.sites.length, "site")} created</h2></div>
          ${table(
            ["Site"],
            now.sites.map((site) => html`<tr><td><a href="#/sites/${site.site_id}">${site.domain}</a></td></tr>`),
            "",
          )}`
        : nothing
    }
    ${
      now.notes.length
        ? html`<div class="head"><h2>Differences from the plan</h2></div>
          ${table(
            ["", "Item", "Why"],
            now.notes.map((one) => html`<tr><td>${words(one.kind)}</td><td>${one.name}</td><td>${one.reason}</td></tr>`),
            "",
          )}`
        : nothing
    }
    ${
      now.plan.length
        ? html`<div class="head"><h2>The plan</h2></div>
          <p class="quiet">Every item of the archive, and what is done with it. What is not ticked is left out.</p>
          ${table(
            ["", "", "Item", "", "Why"],
            now.plan.map((item) => row(item, choices)),
            "",
          )}`
        : nothing
    }`;
}

function row(item: PlanItem, choices: Map<string, boolean>): TemplateResult {
  const { id } = item;
  return html`<tr><td>${
    id === null || item.action === "leave_out"
      ? nothing
      : html`<input type="checkbox" aria-label=${`Import ${words(item.kind)} ${item.name}`} .checked=${choices.get(id) ?? item.wanted}
          @change=${(event: Event) => choices.set(id, (event.target as HTMLInputElement).checked)}>`
  }</td><td>${words(item.kind)}</td><td class="mono">${item.name}</td><td>${badge(item.action)}</td><td>${item.reason}</td></tr>`;
}

function words(kind: string): string {
  return kind.replaceAll("_", " ");
}

function apply(me: Me, now: ImportPlan, choices: Map<string, boolean>): void {
  const without = now.plan.flatMap(({ id, action, wanted }) =>
    id !== null && action !== "leave_out" && !(choices.get(id) ?? wanted) ? [id] : [],
  );
  const again = "It goes on with what was not imported yet. Files and databases that were imported stay as they are now.";
  order<Job>("import.apply", {
    title: now.sites.length ? "Apply again" : "Apply",
    text: `${without.length ? `${count(without.length, "item")} left out. ` : ""}${now.sites.length ? again : ""}`,
    known: { id: now.id, without },
    fields: ["domains", "accept_htaccess", ...(me.role === "administrator" ? ["owner_email"] : [])],
    wishes: {
      domains: { label: "Other domains", hint: "one a line, as old.example.org=new.example.org" },
      accept_htaccess: { label: "Open sites to visitors though a line of an .htaccess file blocks" },
      owner_email: { label: "Owner" },
    },
    action: "Apply",
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function remove(now: ImportPlan): void {
  order("import.delete", {
    title: `Delete ${now.name}`,
    text: "The archive is deleted. Sites created from it stay.",
    known: { id: now.id },
    fields: [],
    action: "Delete",
    dangerous: true,
    done: () => {
      void attempt(async () => go("/imports"));
    },
  });
}
