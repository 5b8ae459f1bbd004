/** The application of a site: whether it runs, and what is run. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { attempt, badge, facts, shown, when } from "../../shared/ui";
import { order } from "../form";
import type { Site, SiteApp } from "../model";
import { perform, type OperationName } from "../operations";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

export function siteApp(site: Site, { may }: Viewer): SitePart {
  const app = new Resource<SiteApp>((signal) => api.get(`/sites/${site.id}/app`, {}, signal), ["site"]);
  const act = (operation: OperationName, done: string) =>
    void attempt(async () => {
      await perform(operation, { id: site.id });
      await app.load();
    }, done);
  return {
    draw: (now) =>
      html`${shown(
        app,
        (found) => html`
      <div class="head"><h2>Application</h2>${badge(found.state, found.problem)}<span class="gap"></span>
        ${may("app.start", "app.restart", "app.stop") ? controls(found, act) : nothing}
        ${may("app.update") ? html`<button class="primary" @click=${() => change(now, found)}>Change</button>` : nothing}</div>
      ${found.problem ? html`<p class="failure">The last start failed: ${found.problem}</p>` : nothing}
      ${facts([
        ["Language", found.runtime],
        ["What is run", html`<span class="mono">${found.entry}</span>`],
        ...(found.runtime === "python" ? [["Interface", found.interface] as [string, string]] : []),
        ["Folder", html`<span class="mono">${found.folder || "/"}</span>`],
        ["Path that says it is well", html`<span class="mono">${found.health_path}</span>`],
        ["Release", found.release === null ? "none yet" : String(found.release)],
        ["Running", when(found.since)],
        ["Ended by itself", found.restarts ? `${found.restarts} times, last: ${found.last_exit ?? "not known"}` : "never"],
      ])}
      <p><a href="#/sites/${site.id}/logs/app">What it wrote</a></p>`,
      )}`,
    dispose: () => app.dispose(),
  };
}

function controls(app: SiteApp, act: (operation: OperationName, done: string) => void): TemplateResult {
  if (app.state === "stopped") {
    return html`<button @click=${() => act("app.start", "It is being started.")}>Start</button>`;
  }
  return html`<button @click=${() => act("app.restart", "It is being restarted; visitors are served by the previous processes until then.")}>Restart</button>
    <button @click=${() => act("app.stop", "It is stopped.")}>Stop</button>`;
}

function change(site: Site, app: SiteApp): void {
  order("app.update", {
    title: `Application of ${site.domain}`,
    text: "What was changed is run from the next start on.",
    action: "Save",
    known: { id: site.id },
    initial: app,
    fields: ["entry", ...(app.runtime === "python" ? ["interface"] : []), "folder", "health_path"],
    wishes: { entry: { label: "Entry point" }, health_path: { label: "Health check path" } },
  });
}
