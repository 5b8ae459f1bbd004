/** The deployments of an application: new code from an archive or a git repository, and the way back to what ran before. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import { go } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { AppDeployment, Job, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function appDeployments(site: Site, { may }: Viewer): SitePart {
  const deployments = new Resource<AppDeployment[]>((signal) => api.get(`/sites/${site.id}/deployments`, {}, signal), ["site", "job"]);
  return {
    draw: (now) =>
      html`<div class="head"><h2>Deployments</h2><span class="gap"></span>
        ${may("app.deploy") ? html`<button class="primary" @click=${() => deploy(now)}>Deploy</button>` : nothing}</div>
      <p class="quiet">New code is fetched and built next to the running release, and replaces it once it responds.</p>
      ${shown(deployments, (all) =>
        table(
          ["", "Code", "Made", "Status", ""],
          all.map(
            (one) => html`<tr><td>${one.number}</td><td class="mono">${code(one)}</td><td>${when(one.created_at)}</td>
            <td>${one.live ? badge("live") : badge(one.status, one.problem)} <a href="#/jobs/${one.job_id}">its job</a></td>
            <td class="act">${
              !one.live && one.status === "ready" && may("app.rollback")
                ? html`<button @click=${() => runAgain(one, now, () => deployments.load())}>Roll back</button>`
                : nothing
            }</td></tr>`,
          ),
          "Nothing was deployed yet: what lies in the site's own folder is run.",
        ),
      )}`,
    dispose: () => deployments.dispose(),
  };
}

function code(one: AppDeployment): string {
  return one.archive ?? `${one.git_url} ${one.git_ref} ${one.git_commit?.slice(0, 10) ?? ""}`;
}

function deploy(site: Site): void {
  order<Job>("app.deploy", {
    title: `Deploy to ${site.domain}`,
    text: "An archive, zip or tar, is uploaded among the site's files first; a git repository is one that anybody may read, or one that a deploy key opens.",
    action: "Deploy",
    known: { id: site.id },
    fields: ({ build }) => ["archive", "git_url", "git_ref", "build", ...(build === "npm" ? ["build_script"] : [])],
    wishes: {
      archive: { label: "Archive", placeholder: "private/shop-1.4.zip" },
      git_url: { label: "or git repository", placeholder: "https://git.example/shop.git or git@git.example:shop.git" },
      git_ref: { label: "Branch, tag or commit" },
      build: { label: "Build", hint: "pip installs what requirements.txt names, uv what uv.lock does, npm what package-lock.json does" },
      build_script: { label: "Script", placeholder: "build", hint: "Of package.json, which npm runs then" },
    },
    done: (job) => go(`/jobs/${job.id}`),
  });
}

function runAgain(one: AppDeployment, site: Site, load: () => Promise<void>): void {
  order("app.rollback", {
    title: `Roll ${site.domain} back to deployment ${one.number}?`,
    text: "Visitors reach it once it answers; until then, and if it does not, what runs goes on.",
    action: "Roll back",
    known: { id: site.id, deployment: one.number },
    fields: [],
    done: load,
  });
}
