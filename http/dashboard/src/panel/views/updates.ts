/** Updates of the server's packages: what there is, what is held, and what was installed last; and the panel's own. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, facts, shown, table, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import type { AvailableUpdate, Job, PanelReleases, Updates } from "../model";
import { perform } from "../operations";

export function updatesView(): View {
  const state = new Resource<Updates>((signal) => api.get("/updates", {}, signal), ["job", "system"]);
  const own = new Resource<PanelReleases>((signal) => api.get("/updates/panel", {}, signal), ["job", "system", "alert"]);
  return {
    title: "Updates",
    draw: () => html`
      <div class="head"><h1>Updates</h1></div>
      ${shown(state, (now) => drawn(now, () => void state.load()))}
      ${shown(own, releases)}`,
    dispose: () => {
      state.dispose();
      own.dispose();
    },
  };
}

function releases(now: PanelReleases): Fragment {
  const { running, offered, last } = now;
  if (running === null)
    return html`<div class="head"><h2>The panel</h2></div>
      <p class="quiet">It was not installed from its Debian package: update it in the way it was installed.</p>`;
  return html`
    <div class="head"><h2>The panel</h2><span class="gap"></span>
      ${now.job_id === null ? html`<button @click=${() => void attempt(lookForRelease)}>Check for a release</button>` : nothing}
      ${offered && !offered.problem && now.job_id === null ? html`<button class="primary" @click=${() => installRelease(offered.version)}>Install ${offered.version}</button>` : nothing}</div>
    ${facts([
      ["Runs", running.version],
      ["Debian package", running.package_version],
      ["Source", now.source ?? "none"],
      ["Last check", when(now.looked_at)],
      ["Offered", offered?.version ?? "—"],
      ["Job", now.job_id === null ? "—" : html`<a href="#/jobs/${now.job_id}">${now.job_id}</a>`],
      ["Last trial", last ? html`${last.version} ${badge(last.state)} ${when(last.ended_at)}` : "—"],
    ])}
    ${[now.look_error, offered?.problem, last?.reason].map((each) => (each ? html`<p class="failure">${each}</p>` : nothing))}
    ${last?.silent_sites.map((domain) => html`<p class="failure">${domain} answered before and did not afterwards.</p>`) ?? nothing}`;
}

function drawn(now: Updates, reload: () => void): Fragment {
  const free = (now.updates ?? []).filter((one) => !one.held);
  const off = now.mode === "off";
  return html`
    <div class="head"><h2>Packages</h2><span class="gap"></span>
      <button @click=${() => configure(now, reload)}>Change mode</button>
      ${off ? nothing : html`<button @click=${() => void attempt(look)}>Check now</button>`}
      ${free.some((one) => one.security) ? html`<button class="primary" @click=${() => install("security")}>Install security updates</button>` : nothing}
      ${free.length ? html`<button @click=${() => install("all")}>Install all</button>` : nothing}</div>
    ${facts([
      ["Mode", badge(now.mode)],
      ["Last check", when(now.looked_at)],
      ["Job", now.job_id === null ? "—" : html`<a href="#/jobs/${now.job_id}">${now.job_id}</a>`],
    ])}
    ${[now.look_error, now.problem].map((each) => (each ? html`<p class="failure">${each}</p>` : nothing))}
    ${
      now.updates
        ? table(
            ["Package", "", "Installed", "Available", ""],
            now.updates.map((one) => row(one, reload)),
            "All packages are up to date.",
          )
        : nothing
    }
    ${now.held.length ? held(now, reload) : nothing} ${now.last ? last(now.last) : nothing}`;
}

function row(one: AvailableUpdate, reload: () => void): TemplateResult {
  return html`<tr><td>${one.name}</td><td>${one.held ? badge("held") : one.security ? badge("security") : nothing}</td>
    <td class="mono">${one.installed}</td><td class="mono">${one.available}</td>
    <td>${one.held ? nothing : html`<button @click=${() => void attempt(() => change("update.hold", one.name, reload))}>Hold</button>`}</td></tr>`;
}

function held(now: Updates, reload: () => void): TemplateResult {
  return html`
    <div class="head"><h2>Held packages</h2></div>
    ${table(
      ["Package", ""],
      now.held.map(
        (name) => html`<tr><td>${name}</td>
          <td><button @click=${() => void attempt(() => change("update.release", name, reload))}>Release</button></td></tr>`,
      ),
      "None.",
    )}`;
}

function last(one: NonNullable<Updates["last"]>): TemplateResult {
  return html`
    <div class="head"><h2>Last installation</h2></div>
    ${table(
      ["Package", "", "Before", "After"],
      one.packages.map(
        (each) => html`<tr><td>${each.name}</td><td>${each.security ? badge("security") : nothing}</td>
          <td class="mono">${each.installed}</td><td class="mono">${each.available}</td></tr>`,
      ),
      "None.",
    )}
    <p class="quiet">By <a href="#/jobs/${one.job_id}">job ${one.job_id}</a>.</p>
    ${one.silent_sites.map((domain) => html`<p class="failure">${domain} answered before, and did not after.</p>`)}`;
}

function install(which: "security" | "all"): void {
  order<Job>("update.install", {
    title: which === "security" ? "Install security updates" : "Install all updates",
    text: "Every site is requested before and after. Updated servers of all sites are restarted, with a short interruption.",
    action: "Install",
    fields: [],
    known: { which },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function configure(now: Updates, reload: () => void): void {
  order("update.configure", {
    title: "Change mode",
    text: "off: no checks and no installations. manual: daily checks. automatic: security updates are installed as well.",
    action: "Change",
    initial: { mode: now.mode },
    done: reload,
  });
}

function installRelease(version: string): void {
  order<Job>("release.install", {
    title: `Install release ${version} of the panel`,
    text: "It is installed next to the running release, then tried: these pages and the API are unavailable for some seconds, sites stay up. If the trial fails, the panel rolls back.",
    action: "Install",
    fields: [],
    done: (job) => go(`/jobs/${job.id}`),
  });
}

async function lookForRelease(): Promise<void> {
  go(`/jobs/${(await perform<Job>("release.look", {})).id}`);
}

async function look(): Promise<void> {
  go(`/jobs/${(await perform<Job>("update.look", {})).id}`);
}

async function change(name: "update.hold" | "update.release", known: string, reload: () => void): Promise<void> {
  await perform(name, { package: known });
  reload();
}
