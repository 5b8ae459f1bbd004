/** Small pieces that every view is made of. */
import { html, nothing, render, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { type ApiError, failureOf } from "./api";
import { inLetters } from "./idn";
import { changed } from "./page";
import type { Resource } from "./resource";

export type Fragment = TemplateResult | typeof nothing | string;

const GOOD = new Set([
  "delivered",
  "running",
  "online",
  "ready",
  "succeeded",
  "active",
  "passed",
  "ok",
  "allocated",
  "applied",
  "within",
  "accept",
  "lift",
  "agrees",
  "current",
  "done",
  "sent",
  "signed",
]);
const BUSY = new Set([
  "creating",
  "starting",
  "stopping",
  "rebooting",
  "deleting",
  "taking",
  "restoring",
  "queued",
  "pending",
  "maintenance",
  "warning",
  "releasing",
  "applying",
  "waiting",
  "throttle",
  "differs",
  "available",
  "under_way",
  "unknown",
  "differing",
]);
const BAD = new Set([
  "failed",
  "offline",
  "lost",
  "critical",
  "suspended",
  "refused",
  "denied",
  "error",
  "exceeded",
  "suspend",
  "missing",
  "blocks",
  "held",
]);

export function badge(status: string, why?: string | null): TemplateResult {
  const tone = GOOD.has(status) ? "good" : BUSY.has(status) ? "busy" : BAD.has(status) ? "bad" : "still";
  return html`<span class="badge ${tone}" title=${why || nothing}>${status.replaceAll("_", " ")}</span>`;
}

export function size(mebibytes: number): string {
  if (mebibytes >= 1 << 20) return `${trim(mebibytes / (1 << 20))} TiB`;
  return mebibytes >= 1024 ? `${trim(mebibytes / 1024)} GiB` : `${trim(mebibytes)} MiB`;
}

export function bytes(count: number): string {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024) return `${trim(count)} ${unit}`;
    count /= 1024;
  }
  return `${trim(count)} TiB`;
}

/** One thing, or several: "1 machine", "3 machines". */
export function count(number: number, thing: string): string {
  return `${number.toLocaleString()} ${thing}${number === 1 ? "" : "s"}`;
}

function trim(value: number): string {
  return value.toLocaleString(undefined, { maximumFractionDigits: value < 10 ? 1 : 0 });
}

const RELATIVE = new Intl.RelativeTimeFormat(undefined, { numeric: "auto", style: "narrow" });

export function when(at: string | null | undefined): Fragment {
  if (!at) return "—";
  const date = new Date(at);
  const seconds = (date.getTime() - Date.now()) / 1000;
  const spans: [number, Intl.RelativeTimeFormatUnit][] = [
    [86_400, "day"],
    [3600, "hour"],
    [60, "minute"],
  ];
  const [length, unit] = spans.find(([span]) => Math.abs(seconds) >= span) ?? [1, "second"];
  return html`<time datetime=${at} title=${date.toLocaleString()}>${RELATIVE.format(Math.round(seconds / length), unit)}</time>`;
}

/** What a failure says, and what to do about it. */
export function failure(error: ApiError | null): Fragment {
  if (!error) return nothing;
  return html`<p class="failure" role="alert">${error.message}${error.hint ? html`<br><span class="quiet">${error.hint}</span>` : nothing}</p>`;
}

/** A resource's content once it is loaded, a quiet line until then, and its failure if there was one. */
export function shown<T>(resource: Resource<T>, draw: (value: T) => Fragment): Fragment {
  return html`${failure(resource.error)}${resource.value !== null ? draw(resource.value) : resource.error ? nothing : html`<p class="quiet">Loading…</p>`}`;
}

export function table(heads: string[], rows: TemplateResult[], empty: string): TemplateResult {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="scroll"><table>
    <thead><tr>${heads.map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${rows}</tbody>
  </table></div>`;
}

export function facts(pairs: [string, Fragment][]): TemplateResult {
  return html`<dl class="facts">${pairs.map(([name, value]) => html`<div><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** A domain name in its own letters; `both`: with the form that the DNS has of it. */
export function named(name: string, forms?: "both"): Fragment {
  const letters = inLetters(name);
  return letters === name || !forms ? letters : html`${letters} <span class="quiet mono">${name}</span>`;
}

// Notes at the edge of the page, for what happened elsewhere than where one looks.

interface Note {
  text: string;
  bad: boolean;
}

const notes = new Set<Note>();
const NOTE_MILLISECONDS = 6000;

export function note(text: string, bad = false): void {
  const added = { text: inLetters(text), bad };
  notes.add(added);
  setTimeout(() => {
    notes.delete(added);
    changed();
  }, NOTE_MILLISECONDS);
  changed();
}

export function notesTemplate(): TemplateResult {
  return html`<div class="notes" role="status">${[...notes].map(
    (shown) => html`<p class=${shown.bad ? "bad" : ""}>${shown.text}</p>`,
  )}</div>`;
}

/** Run what a button asks for; a refusal is a note. */
export async function attempt(work: () => Promise<unknown>, done?: string): Promise<void> {
  try {
    await work();
    if (done) note(done);
  } catch (thrown) {
    // What somebody stopped is no failure.
    if (thrown instanceof DOMException && thrown.name === "AbortError") throw thrown;
    const error = failureOf(thrown);
    note(error.hint ? `${error.message} (${error.hint})` : error.message, true);
  }
}

// Dialogs

export interface Field {
  name: string;
  label: string;
  /** `choices`: any number of the options; `chosen` reads which. */
  kind?: "text" | "password" | "email" | "number" | "date" | "checkbox" | "textarea" | "select" | "choices";
  value?: string;
  values?: readonly string[];
  options?: { value: string; label: string }[];
  required?: boolean;
  hint?: string;
  placeholder?: string;
  autocomplete?: string;
  /** Of a number. */
  least?: number;
  most?: number;
}

interface Form {
  title: string;
  text?: Fragment;
  /** Those that depend on what was chosen are a function of it. */
  fields?: Field[] | ((values: Values) => Field[]);
  /** Said beneath the fields, of what is chosen in them. */
  about?: (values: Values) => Fragment;
  action: string;
  /** Fields in two columns. */
  wide?: boolean;
  dangerous?: boolean;
  /** The action is offered only once this has been typed. */
  typed?: string;
  submit: (values: Values) => Promise<Fragment | void>;
  /** Shown at once, as what `submit` returns is. */
  told?: Fragment;
}

export type Values = Record<string, string>;

/** Something to look at, in a dialog. */
export function tell(title: string, content: Fragment): void {
  ask({ title, wide: true, action: "", submit: async () => undefined, told: content });
}

/**
 * A modal form. A refusal is shown in it and it stays; what `submit` returns (a secret shown once) is shown in its place.
 */
export function ask(form: Form): void {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", form.title);
  dialog.className = form.wide ? "wide" : "";
  document.body.append(dialog);
  dialog.addEventListener("close", () => dialog.remove());
  let error: ApiError | null = null;
  let busy = false;
  let typed = "";
  let result: Fragment | null = form.told ?? null;
  let values: Values = {};
  const fields = () => (typeof form.fields === "function" ? form.fields(values) : (form.fields ?? []));
  const choose = (event: Event) => {
    values = valuesOf(event.currentTarget as HTMLFormElement);
    draw();
  };

  const draw = () =>
    render(
      result
        ? html`<h2>${form.title}</h2>${result}
      <footer><button class="primary" @click=${() => dialog.close()}>Done</button></footer>`
        : html`
    <form @submit=${send} @change=${choose}>
      <h2>${form.title}</h2>
      ${form.text ? html`<p>${form.text}</p>` : nothing}
      ${fields().length ? html`<div class="fields">${inputs(fields())}</div>` : nothing}
      ${form.about?.(values) ?? nothing}
      ${
        form.typed !== undefined
          ? html`<label><span>Type <code>${form.typed}</code> to confirm</span>
        <input autocomplete="off" spellcheck="false" @input=${(event: Event) => {
          typed = (event.target as HTMLInputElement).value;
          draw();
        }}></label>`
          : nothing
      }
      ${failure(error)}
      <footer>
        <button type="button" @click=${() => dialog.close()}>Cancel</button>
        <button class=${form.dangerous ? "danger" : "primary"} ?disabled=${busy || (form.typed !== undefined && typed !== form.typed)}>${form.action}</button>
      </footer>
    </form>`,
      dialog,
    );

  const send = async (event: SubmitEvent) => {
    event.preventDefault();
    const values = valuesOf(event.target as HTMLFormElement);
    busy = true;
    error = null;
    draw();
    try {
      result = (await form.submit(values)) || null;
      if (!result) dialog.close();
    } catch (thrown) {
      error = failureOf(thrown);
    } finally {
      busy = false;
      draw();
    }
  };
  draw();
  dialog.showModal();
}

export function valuesOf(form: HTMLFormElement): Values {
  const values: Values = {};
  for (const [name, value] of new FormData(form)) if (typeof value === "string") values[name] = value;
  return values;
}

/** Which options of a field of choices are ticked. */
export function chosen(values: Values, field: string): string[] {
  return Object.keys(values)
    .filter((name) => name.startsWith(`${field}:`))
    .map((name) => name.slice(field.length + 1));
}

/** The values that were given, by the names of the API; what was left empty is left out. */
export function given(values: Values, names: string[]): Values {
  return Object.fromEntries(names.map((name) => [name, (values[name] ?? "").trim()]).filter(([, value]) => value)) as Values;
}

/** As `given`, for whole numbers. */
export function givenNumbers(values: Values, names: string[]): Record<string, number> {
  return Object.fromEntries(Object.entries(given(values, names)).map(([name, value]) => [name, Number(value)]));
}

export function inputs(fields: Field[]): TemplateResult {
  return html`${repeat(fields, (field) => field.name, input)}`;
}

function input(field: Field): TemplateResult {
  const hint = field.hint ? html`<span class="quiet">${field.hint}</span>` : nothing;
  switch (field.kind) {
    case "checkbox":
      return html`<label class="check"><input type="checkbox" name=${field.name} ?checked=${field.value === "on"}> ${field.label} ${hint}</label>`;
    case "select":
      return html`<label>${field.label}<select name=${field.name}>
          ${(field.options ?? []).map((option) => html`<option value=${option.value} ?selected=${option.value === field.value}>${option.label}</option>`)}
        </select>${hint}</label>`;
    case "choices":
      return html`<fieldset><legend>${field.label}</legend>${(field.options ?? []).map(
        (option) => html`<label class="check">
          <input type="checkbox" name="${field.name}:${option.value}" ?checked=${field.values?.includes(option.value)}> ${option.label}</label>`,
      )}${hint}</fieldset>`;
    case "textarea":
      return html`<label>${field.label}<textarea name=${field.name} rows="3" ?required=${field.required} spellcheck="false" .defaultValue=${field.value ?? ""} placeholder=${field.placeholder ?? nothing}></textarea>${hint}</label>`;
    case "number":
      return html`<label>${field.label}<input type="number" name=${field.name} .defaultValue=${field.value ?? ""} min=${field.least ?? nothing} max=${field.most ?? nothing} ?required=${field.required} autocomplete="off"
          placeholder=${field.placeholder ?? nothing}>${hint}</label>`;
    default:
      return html`<label>${field.label}<input type=${field.kind ?? "text"} name=${field.name} .defaultValue=${field.value ?? ""}
          ?required=${field.required} placeholder=${field.placeholder ?? nothing}
          autocomplete=${field.autocomplete ?? "off"}>${hint}</label>`;
  }
}

/** A secret that is shown once, with a button that copies it. */
export function secret(value: string): TemplateResult {
  return html`<div class="secret"><code>${value}</code>
    <button type="button" @click=${() => void navigator.clipboard.writeText(value).then(() => note("Copied."))}>Copy</button></div>`;
}
