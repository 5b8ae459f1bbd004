/**
 * Every operation of the registry that the caller may use, each by a form made from its schema: what has no page of its own
 * is done here, and nothing is out of reach of who does not write programs.
 */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type ApiError, type Page, failureOf } from "../../shared/api";
import { address, changed, refine, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { failure, inputs, valuesOf as typedIn, type Field, type Values } from "../../shared/ui";
import { answerShown } from "../answer";
import { fieldOf, isOtherNameOfPath, nested, opened, siteChoice, valuesOf } from "../form";
import type { Me, Site } from "../model";
import { OPERATIONS, perform, type Operation, type OperationField, type OperationName } from "../operations";

export function operationsView(me: Me, name: string | undefined): View {
  if (!name) return indexView(me);
  const operation = may(me, name) ? OPERATIONS[name as OperationName] : undefined;
  return operation
    ? operationView(name as OperationName, operation)
    : { title: "Operation", draw: () => html`<h1>There is no such operation</h1>` };
}

function may(me: Me, name: string): boolean {
  const role = OPERATIONS[name as OperationName]?.role;
  return role === "signed_in" || (me.role === "administrator" && role !== undefined && role !== "public");
}

function indexView(me: Me): View {
  const names = (Object.keys(OPERATIONS) as OperationName[]).filter((name) => may(me, name)).sort();
  const search = (event: InputEvent) => {
    refine({ q: (event.target as HTMLInputElement).value });
    changed();
  };
  return {
    title: "Operations",
    draw: () => {
      const wanted = (address().query.get("q") ?? "").toLowerCase();
      const found = names.filter((name) => `${name} ${OPERATIONS[name].summary}`.toLowerCase().includes(wanted));
      const subjects = new Map<string, OperationName[]>();
      for (const name of found) {
        const subject = name.slice(0, name.indexOf("."));
        subjects.set(subject, [...(subjects.get(subject) ?? []), name]);
      }
      return html`
      <div class="head"><h1>Operations</h1><input type="search" aria-label="Filter" placeholder="Filter" .defaultValue=${wanted} @input=${search}></div>
      <p class="quiet">All that can be done here, as the API and <code>svc</code> have it too.</p>
      ${
        found.length
          ? [...subjects].map(
              ([subject, of]) =>
                html`<h2>${subject.replaceAll("_", " ")}</h2><ul class="operations">${of.map(
                  (name) =>
                    html`<li><a href="#/operations/${name}" data-operation=${name}>${name}</a> <span>${OPERATIONS[name].summary}</span></li>`,
                )}</ul>`,
            )
          : html`<p class="empty">No operation is like that.</p>`
      }`;
    },
  };
}

function operationView(name: OperationName, operation: Operation): View {
  const asked = operation.fields.filter((field) => !isOtherNameOfPath(field, operation.fields));
  const ofSite = /^\/sites\/\{id\}/.test(operation.path);
  const sites = ofSite ? new Resource<Page<Site>>((signal) => api.get("/sites", { page_size: 200 }, signal)) : null;
  let values: Values = {};
  let error: ApiError | null = null;
  let answer: unknown;
  let busy = false;

  const fields = () => asked.flatMap((field) => opened(field, values, {}));
  const shape = (field: OperationField): Field => {
    const isSite = field.name === "id" && field.place === "path";
    return fieldOf(field, undefined, sites && isSite ? siteChoice(sites.value) : {});
  };
  const choose = (event: Event) => {
    values = typedIn(event.currentTarget as HTMLFormElement);
    changed();
  };
  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    values = typedIn(event.target as HTMLFormElement);
    busy = true;
    error = null;
    answer = undefined;
    changed();
    try {
      answer = (await perform(name, nested(valuesOf(fields(), values)))) ?? {};
    } catch (thrown) {
      error = failureOf(thrown);
    } finally {
      busy = false;
      changed();
    }
  };
  const dangerous = operation.method === "DELETE";
  const form = (): TemplateResult => html`<form class="panel operation" @submit=${send} @change=${choose}>
      ${asked.length ? html`<div class="fields">${inputs(fields().map(shape))}</div>` : html`<p class="quiet">It needs nothing to be said.</p>`}
      ${failure(error)}
      <p><button class=${dangerous ? "danger" : "primary"} ?disabled=${busy}>${operation.method === "GET" ? "Show" : "Run"}</button></p>
    </form>`;
  return {
    title: name,
    draw: () => html`
      <div class="head"><a class="quiet" href="#/operations">Operations</a><span class="quiet">/</span><h1>${name}</h1></div>
      <p>${operation.summary}.</p>
      <p class="quiet mono">${operation.method} /api/v1${operation.path}</p>
      ${form()}
      <div role="status">${answer === undefined ? nothing : html`<h2>Answer</h2>${answerShown(answer)}`}</div>`,
    dispose: () => sites?.dispose(),
  };
}
