/** An operation's answer, for who has no page for it: a list as a table, one thing as its members, a job as a link. */
import { html, nothing, type TemplateResult } from "lit-html";
import { facts, table, when, type Fragment } from "../shared/ui";
import { spoken } from "./form";

const MOST_COLUMNS = 7;
const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d/;

type Members = Record<string, unknown>;

export function answerShown(answer: unknown): TemplateResult {
  if (Array.isArray(answer)) return listShown(answer);
  if (!isMembers(answer)) return html`<pre class="answer">${String(answer)}</pre>`;
  if (Array.isArray(answer["items"]) && "total" in answer) {
    return html`${listShown(answer["items"])}<p class="quiet count">${answer["total"]} in all</p>`;
  }
  if (isJob(answer)) return html`<p>It is being done: <a href="#/jobs/${answer["id"]}">${answer["title"]}</a></p>`;
  if (!Object.keys(answer).length) return html`<p>Done.</p>`;
  const simple = Object.entries(answer).filter(([, value]) => !isNested(value));
  const rest = Object.entries(answer).filter(([, value]) => isNested(value));
  return html`${simple.length ? facts(simple.map(([name, value]) => [spoken(name), said(value)])) : nothing}
    ${rest.map(([name, value]) => html`<h3>${spoken(name)}</h3>${Array.isArray(value) ? listShown(value) : html`<pre class="answer">${JSON.stringify(value, null, 2)}</pre>`}`)}`;
}

function listShown(items: unknown[]): TemplateResult {
  const members = items.filter(isMembers);
  if (!items.length) return html`<p class="empty">Nothing.</p>`;
  if (members.length < items.length) return html`<pre class="answer">${items.map(String).join("\n")}</pre>`;
  const names = Object.keys(members[0] ?? {});
  const heads = names.filter((name) => name !== "id" && members.some((item) => !isNested(item[name]))).slice(0, MOST_COLUMNS);
  const all = names.includes("id") ? [...heads, "id"] : heads;
  return table(
    all.map(spoken),
    members.map((item) => html`<tr>${all.map((name) => html`<td class=${name === "id" ? "mono" : ""}>${said(item[name])}</td>`)}</tr>`),
    "Nothing.",
  );
}

function said(value: unknown): Fragment {
  if (value === null || value === undefined || value === "") return "—";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "string" && TIME.test(value)) return when(value);
  return isNested(value) ? JSON.stringify(value) : String(value);
}

function isMembers(value: unknown): value is Members {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function isNested(value: unknown): boolean {
  return typeof value === "object" && value !== null;
}

function isJob(answer: Members): boolean {
  return typeof answer["id"] === "number" && "steps" in answer && "progress" in answer;
}
