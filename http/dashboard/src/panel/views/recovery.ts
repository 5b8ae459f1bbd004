/** Recovery: how old the manifests at the targets are, the key that opens them, and a lost server brought back. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, bytes, count, facts, secret, shown, table, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import type { Discovered, Job, RecoveredFrom, Recovery, RecoveryKeySecret, TargetManifest } from "../model";
import { perform } from "../operations";

export function recoveryView(): View {
  const state = new Resource<Recovery>((signal) => api.get("/recovery", {}, signal), ["job", "alert", "system"]);
  return {
    title: "Recovery",
    draw: () => html`
      <div class="head"><h1>Recovery</h1></div>
      ${shown(state, (now) => html`${recovered(now.recovered)}${manifests(now, () => void state.load())}${become(now)}`)}`,
    dispose: () => state.dispose(),
  };
}

function manifests(now: Recovery, reload: () => void): Fragment {
  const { key } = now;
  return html`
    <div class="head"><h2>If this server is lost</h2><span class="gap"></span>
      <button @click=${() => makeKey(Boolean(key), reload)}>${key ? "Rotate recovery key" : "Create recovery key"}</button>
      ${key ? html`<button @click=${() => void attempt(write)}>Write manifests now</button>` : nothing}</div>
    ${
      key
        ? facts([
            ["Recovery key", html`<span class="mono">${key.fingerprint}</span>`],
            ["Created", when(key.created_at)],
          ])
        : html`<p class="failure">There is no recovery key: once this server is lost, nothing opens its backups.</p>`
    }
    ${table(["Target", "", "Manifest of", "Size", ""], now.manifests.map(row), "No backup target: manifests are written to targets only.")}`;
}

function row(one: TargetManifest): TemplateResult {
  const status = one.error ? "failed" : one.overdue ? "overdue" : "ok";
  return html`<tr><td>${one.target}</td><td>${badge(status, one.error)}</td><td>${when(one.written_at)}</td>
    <td>${one.bytes === null ? "—" : bytes(one.bytes)}</td><td>${one.error ? html`<div class="failure">${one.error}</div>` : nothing}</td></tr>`;
}

function recovered(from: RecoveredFrom | null): Fragment {
  if (!from) return nothing;
  const missing = from.sites.filter((site) => site.status !== "recovered").length;
  return html`
    <div class="head"><h2>Recovered from ${from.hostname}</h2><span class="gap"></span>
      ${missing ? html`<button class="primary" @click=${() => void attempt(goOn)}>Continue</button>` : nothing}</div>
    ${facts([
      ["As of", when(from.taken_at)],
      ["Since", when(from.recovered_at)],
      ["Sites", missing ? `${count(missing, "site")} not back, of ${from.sites.length}` : `all ${from.sites.length} are back`],
      ["Job", from.job_id === null ? "—" : html`<a href="#/jobs/${from.job_id}">${from.job_id}</a>`],
    ])}
    ${from.notes.map((each) => html`<p class="quiet">${each}</p>`)}
    ${table(
      ["Site", "", "As of", ""],
      from.sites.map(
        (site) => html`<tr><td><a href="#/sites/${site.site_id}">${site.domain}</a></td><td>${badge(site.status, site.error)}</td>
          <td>${when(site.backup_at)}</td><td>${site.error ? html`<div class="failure">${site.error}</div>` : nothing}</td></tr>`,
      ),
      "It had no sites.",
    )}`;
}

/** Offered where it is possible: on a server that has no sites. */
function become(now: Recovery): Fragment {
  if (now.recovered || now.holds.some((each) => each.endsWith(" sites"))) return nothing;
  return html`
    <div class="head"><h2>Recover a lost server</h2><span class="gap"></span>
      <button @click=${() => discover(now)}>Discover</button></div>
    <p class="quiet">This server has no sites: it can become one that was lost. Add the target that its backups went to, then discover what it holds.</p>`;
}

function discover(now: Recovery): void {
  order<Discovered>("recovery.discover", {
    title: "Discover",
    text: "Nothing is changed. With the recovery key the sites are shown as well.",
    action: "Discover",
    wide: true,
    wishes: { target: targetChoice(now) },
    done: (found) => discovered(found, now),
  });
}

function discovered(found: Discovered, now: Recovery): Fragment {
  const { opened } = found;
  return html`
    ${table(
      ["Server", "Manifests", "The newest"],
      found.servers.map(
        (one) => html`<tr><td>${one.hostname}</td><td>${one.manifests.length}</td><td>${when(one.manifests[0]?.taken_at)}</td></tr>`,
      ),
      "There is no manifest of a server at this target.",
    )}
    ${
      opened
        ? html`<h3>${opened.hostname}, ${when(opened.taken_at)}</h3>
          ${table(
            ["Site", "Owner", "Backed up", ""],
            opened.sites.map(
              (site) => html`<tr><td>${site.domain}</td><td>${site.owner}</td><td>${when(site.backup_at)}</td>
                <td>${site.problem ? html`<div class="failure">${site.problem}</div>` : badge("ok")}</td></tr>`,
            ),
            "It has no sites.",
          )}
          <p><button class="primary" @click=${() => recover(now, opened.id)}>Recover</button></p>`
        : nothing
    }`;
}

function recover(now: Recovery, manifest: string): void {
  order<Job>("recovery.run", {
    title: "Recover a lost server",
    text: `This server becomes the lost one, which must not run again. ${now.holds.length ? `What it has is deleted: ${now.holds.join(", ")}.` : ""} You are signed out: sign in as there.`,
    action: "Recover",
    dangerous: true,
    known: { manifest },
    initial: { replace: false },
    wishes: { target: targetChoice(now), replace: { label: "Replace what this server has" } },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function targetChoice(now: Recovery) {
  return { label: "Target", kind: "select" as const, options: now.manifests.map((one) => ({ value: one.target_id, label: one.target })) };
}

function makeKey(rotate: boolean, reload: () => void): void {
  order<RecoveryKeySecret>("recovery.key", {
    title: rotate ? "Rotate recovery key" : "Create recovery key",
    text: rotate ? "The current key opens no manifest once new ones are written." : "",
    action: rotate ? "Rotate" : "Create",
    fields: [],
    known: { rotate },
    done: (made) => {
      reload();
      return html`<p>Keep it away from this server. It is shown only once; without it nothing of a lost server can be read.</p>${secret(made.recovery_key)}`;
    },
  });
}

async function write(): Promise<void> {
  const job = await perform<Job>("recovery.manifest", {});
  go(`/jobs/${job.id}`);
}

async function goOn(): Promise<void> {
  const job = await perform<Job>("recovery.run", {});
  go(`/jobs/${job.id}`);
}
