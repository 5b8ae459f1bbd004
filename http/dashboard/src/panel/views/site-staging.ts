/** The staging copy of a WordPress: what it is, and what a push of it would replace, before there is a button for it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, named, secret, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Job, Site, Staging, StagingCreated, StagingPart, StagingPassword, StagingPreview } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function siteStaging(site: Site, { may }: Viewer): SitePart {
  const staging = new Resource<Staging>((signal) => api.get(`/sites/${site.id}/staging`, {}, signal), ["site", "job"]);
  let preview: Resource<StagingPreview> | null = null;
  const compared = () =>
    (preview ??= new Resource<StagingPreview>((signal) => api.get(`/sites/${site.id}/staging/preview`, {}, signal), []));
  const look = () => {
    preview?.dispose();
    preview = null;
    compared();
  };
  return {
    draw: (now) =>
      now.staging_of
        ? html`<p>This site is a staging copy. <a href="#/sites/${now.staging_of}/staging">The site that it is a copy of</a></p>`
        : html`${shown(staging, (copy) => {
            if (copy.status === "none") return none(now, may("staging.create"));
            return html`${head(now, copy, may)}
              ${copy.status === "ready" ? replaced(now, compared(), look, may("staging.push")) : nothing}`;
          })}`,
    dispose: () => {
      staging.dispose();
      preview?.dispose();
    },
  };
}

function none(site: Site, mayCreate: boolean): TemplateResult {
  return html`<div class="head"><h2>Staging</h2><span class="gap"></span>
    ${mayCreate ? html`<button class="primary" @click=${() => create(site)}>Create copy</button>` : nothing}</div>
    <p class="quiet">A copy of files and database to work on, behind a password and not in search engines. Changes in it
    do not affect this site until they are pushed.</p>`;
}

function head(site: Site, copy: Staging, may: Viewer["may"]): TemplateResult {
  const idle = copy.status === "ready" || copy.status === "failed";
  return html`<div class="head"><h2>Staging</h2>${badge(copy.status, copy.reason)}<span class="gap"></span>
    ${may("staging.password") ? html`<button @click=${() => newPassword(site)}>Reset password</button>` : nothing}
    ${idle && may("staging.refresh") ? html`<button @click=${() => refresh(site)}>Refresh</button>` : nothing}
    ${idle && may("staging.delete") ? html`<button class="danger" @click=${() => remove(site)}>Delete</button>` : nothing}</div>
  ${facts([
    ["Copy", html`<a href="https://${copy.domain}" target="_blank" rel="noreferrer">${named(copy.domain ?? "")}</a>, as ${copy.login}`],
    ["Its files, databases and PHP", html`<a href="#/sites/${copy.copy_id}">the copy's own page</a>`],
    ["Copied", copy.copied_at ? when(copy.copied_at) : "not yet"],
    ["Pushed", copy.pushed_at ? when(copy.pushed_at) : "never"],
    ["What it would have mailed", html`<span class="mono">${copy.mail}</span> of the copy`],
    ["Last job", html`<a href="#/jobs/${copy.job_id}">${copy.job_id}</a>`],
    ...(copy.reason ? [["Why", copy.reason] as [string, string]] : []),
  ])}`;
}

function replaced(site: Site, preview: Resource<StagingPreview>, look: () => void, mayPush: boolean): TemplateResult {
  return html`<div class="head"><h2>What a push replaces</h2><span class="gap"></span><button @click=${look}>Reload</button></div>
    ${shown(
      preview,
      (found) => html`
      ${
        found.drift.length
          ? html`<p>${badge("warning", "changed meanwhile")} Changed here since the copy was made: <span class="mono">${found.drift.join(", ")}</span>.
            A push would lose that, and is refused unless you accept it.</p>`
          : html`<p class="quiet">None of it was changed here since the copy was made.</p>`
      }
      ${parts("Files", found.files)}${parts("Tables", found.tables)}
      <p class="quiet">The site is backed up first. Of the options these stay as they are here: <span class="mono">${found.kept_options.join(", ")}</span></p>
      ${mayPush ? html`<button class="primary" @click=${() => push(site)}>Push to ${named(site.domain)}</button>` : nothing}`,
    )}`;
}

function parts(what: string, all: StagingPart[]): TemplateResult {
  return table(
    [what, "", ""],
    all.map(
      (part) => html`<tr><td class="mono">${part.name}</td>
      <td>${part.pushed && part.allowed ? badge("replaced") : badge("kept")} ${part.drifted ? badge("warning", "changed meanwhile") : nothing}</td>
      <td class="quiet">${part.why ?? ""}</td></tr>`,
    ),
    "There are none.",
  );
}

function create(site: Site): void {
  order<StagingCreated>("staging.create", {
    title: `Copy ${site.domain}`,
    text: "The copy is a site of its own, under a name below this one. Point that name to this server as you did with the site's own.",
    action: "Create",
    known: { id: site.id },
    wishes: { name: { label: "Name", hint: "The copy is NAME and the domain of the site" } },
    done: (made) => html`<p>${made.domain} asks for ${made.login} and this password. It is shown only once.</p>${secret(made.password)}
      <p><a href="#/jobs/${made.id}">The job that makes it</a></p>`,
  });
}

function newPassword(site: Site): void {
  order<StagingPassword>("staging.password", {
    title: "Reset the password of the copy",
    text: "The old password stops working at once.",
    action: "Reset",
    known: { id: site.id },
    fields: [],
    done: ({ login, password }) => html`<p>The password of ${login}. It is shown only once.</p>${secret(password)}`,
  });
}

function refresh(site: Site): void {
  order<Job>("staging.refresh", {
    title: "Refresh the copy?",
    text: `The copy is made again from ${site.domain}. Changes in it are lost.`,
    action: "Refresh",
    dangerous: true,
    known: { id: site.id },
    fields: [],
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function push(site: Site): void {
  order<Job>("staging.push", {
    title: `Push the copy to ${site.domain}`,
    text: "The site is backed up. Then everything marked as replaced is replaced; name files or tables to replace only these.",
    action: "Push",
    dangerous: true,
    known: { id: site.id },
    typed: site.domain,
    typedAs: "confirm",
    wishes: {
      files: { label: "Files", hint: "The default, if neither is named" },
      tables: { label: "Tables" },
      accept_drift: { label: "Discard changes made here since the copy was made" },
    },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function remove(site: Site): void {
  order<Job>("staging.delete", {
    title: "Delete the copy?",
    text: `Changes in it are lost. ${site.domain} is not affected.`,
    action: "Delete",
    dangerous: true,
    known: { id: site.id },
    fields: [],
    done: (job) => go(`/jobs/${job.id}`),
  });
}
