/** The uploads of a site as a list with their progress, which its pages of files and databases show. */
import { html, nothing, type TemplateResult } from "lit-html";
import { bytes } from "../../shared/ui";
import { again, drop, sendings, type Sending } from "./uploads";

/** What is being uploaded to the site, wherever in it: it goes on while another folder is looked at. */
export function sendingList(site: string): TemplateResult | typeof nothing {
  const all = sendings(site);
  if (!all.length) return nothing;
  return html`<ul class="sending" aria-label="Uploads">${all.map(
    (one) => html`<li>
      <span class="mono">${one.path}</span>
      ${
        one.state === "stopped"
          ? stopped(one)
          : html`<progress max=${one.file.size || 1} .value=${one.state === "done" ? one.file.size || 1 : one.sent} aria-label="Uploaded"></progress>
        <span class="quiet">${said(one)}</span>`
      }
      <span class="gap"></span>
      <button class="plain" @click=${() => drop(one)}>${one.state === "sending" || one.state === "waiting" ? "Stop" : "Hide"}</button></li>`,
  )}</ul>`;
}

function said(one: Sending): string {
  switch (one.state) {
    case "waiting":
      return "waits for its turn";
    case "checking":
      return "is compared";
    case "done":
      return `${bytes(one.file.size)}, arrived whole`;
    default:
      return `${bytes(one.sent)} of ${bytes(one.file.size)}`;
  }
}

function stopped(one: Sending): TemplateResult {
  const there = one.error?.code === "conflict" && !one.replace;
  return html`<span class="failure">${one.error?.message}</span>
    ${there ? html`<button @click=${() => again(one, true)}>Replace what is there</button>` : html`<button @click=${() => again(one)}>Resume</button>`}`;
}
