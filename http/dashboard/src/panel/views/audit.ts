/** The audit: who did what, from where, and what came of it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { auditButtons, days } from "../../shared/audit";
import { pager } from "../../shared/list";
import { address, changed, refine, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, shown, table, tell, valuesOf, when } from "../../shared/ui";
import type { AuditEntry } from "../model";
import { OPERATIONS } from "../operations";

const FILTERS = ["q", "actor", "operation", "outcome", "since", "until", "target_kind", "target_id"];

export function auditView(): View {
  const entries = new Resource<Page<AuditEntry>>((signal) => api.get("/audit", asked(), signal), ["activity"]);
  const choose = (values: Record<string, string>) => {
    refine({ page: "", ...values });
    changed();
    void entries.load();
  };
  const clear = (event: Event) => {
    // Not reset(): that goes back to what the page was drawn with.
    for (const field of (event.target as HTMLElement).closest("form")?.querySelectorAll("input, select") ?? []) {
      (field as HTMLInputElement | HTMLSelectElement).value = "";
    }
    choose(Object.fromEntries(FILTERS.map((name) => [name, ""])));
  };
  return {
    title: "Audit",
    draw: () => html`
      <div class="head"><h1>Audit</h1><span class="gap"></span>${auditButtons(chosen)}</div>
      ${filters(choose, clear)}
      ${shown(entries, (page) => html`${rows(page.items)}${pager(page, (number) => choose({ page: String(number) }))}`)}`,
    dispose: () => entries.dispose(),
  };
}

function asked(): Record<string, string> {
  return days(Object.fromEntries(address().query));
}

/** What an export takes over of them: it knows no words. */
function chosen(): Record<string, string> {
  return Object.fromEntries([...address().query].filter(([name]) => FILTERS.includes(name) && name !== "q"));
}

function filters(choose: (values: Record<string, string>) => void, clear: (event: Event) => void): TemplateResult {
  const { query } = address();
  const value = (name: string) => query.get(name) ?? "";
  const send = (event: Event) => choose(valuesOf(event.currentTarget as HTMLFormElement));
  const of = value("target_id");
  return html`<form class="filters" @change=${send} @submit=${(event: Event) => {
    event.preventDefault();
    send(event);
  }}>
    <input type="search" name="q" aria-label="Words" placeholder="Words" .defaultValue=${value("q")}>
    <input name="actor" aria-label="Who" placeholder="Who: an address" .defaultValue=${value("actor")}>
    <input name="operation" aria-label="Operation" placeholder="Operation" list="operations" .defaultValue=${value("operation")}>
    <datalist id="operations">${Object.keys(OPERATIONS).map((name) => html`<option value=${name}></option>`)}</datalist>
    <select name="outcome" aria-label="Outcome">
      <option value="">Outcome: any</option>
      ${["ok", "denied", "failed"].map((each) => html`<option ?selected=${each === value("outcome")}>${each}</option>`)}
    </select>
    <label>From <input type="date" name="since" .defaultValue=${value("since")}></label>
    <label>to <input type="date" name="until" .defaultValue=${value("until")}></label>
    ${FILTERS.some((name) => value(name)) ? html`<button type="button" @click=${clear}>Clear filters</button>` : nothing}
  </form>
  ${of ? html`<p class="quiet">Of one ${value("target_kind") || "thing"} alone: <span class="mono">${of}</span></p>` : nothing}`;
}

function rows(entries: AuditEntry[]): TemplateResult {
  return table(
    ["When", "Who", "What", "Of", "From", "Outcome"],
    entries.map(
      (entry) => html`<tr>
      <td>${when(entry.at)}</td><td>${entry.actor} <span class="quiet">${entry.via}</span></td>
      <td><button class="link mono" @click=${() => look(entry)}>${entry.operation}</button></td>
      <td>${entry.target_name ?? entry.target_id ?? "—"}</td><td class="mono">${entry.address ?? "—"}</td>
      <td>${badge(entry.outcome, entry.error_code)}</td></tr>`,
    ),
    "Nothing is like that.",
  );
}

function look(entry: AuditEntry): void {
  const about = new URLSearchParams({ target_kind: entry.target_kind, target_id: entry.target_id ?? "" });
  tell(
    entry.operation,
    html`${facts([
      ["When", new Date(entry.at).toLocaleString()],
      ["Who", html`${entry.actor} <span class="quiet">${entry.role}, ${entry.via}</span>`],
      ["From", html`<span class="mono">${entry.address ?? "—"}</span>`],
      ["Of", html`${entry.target_kind} ${entry.target_name ?? ""}<br><span class="mono quiet">${entry.target_id ?? ""}</span>`],
      ["Outcome", html`${badge(entry.outcome)} <span class="quiet">${entry.error_code ?? ""}</span>`],
      ["Request", html`<span class="mono">${entry.request_id}</span>`],
    ])}
    ${entry.details ? html`<pre class="payload">${JSON.stringify(entry.details, null, 2)}</pre>` : nothing}
    ${entry.target_id ? html`<p><a href="#/audit?${about.toString()}" @click=${(event: Event) => (event.target as HTMLElement).closest("dialog")?.close()}>All that was done to it</a></p>` : nothing}`,
  );
}
