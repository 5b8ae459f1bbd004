/**
 * The page: one template of the whole, drawn again when something changed, and the address behind `#` that says which
 * view is shown. lit-html touches only what differs.
 */
import { render, type TemplateResult } from "lit-html";

/** A piece of a view that loads what it shows. `dispose` ends what it started: listeners, timers, requests. */
export interface Part {
  draw(): TemplateResult;
  dispose?(): void;
}

/** What the address names. */
export interface View extends Part {
  title: string;
  /** Stay, for the address behind `#` now names another place of this view. Without it another address is another view. */
  follow?(parts: string[]): boolean;
}

let scheduled = false;
let draw: () => TemplateResult;
let root: HTMLElement;

export function mount(element: HTMLElement, template: () => TemplateResult): void {
  root = element;
  draw = template;
  changed();
}

/** Draw again, once, as soon as what runs now has ended. */
export function changed(): void {
  if (scheduled) return;
  scheduled = true;
  queueMicrotask(() => {
    scheduled = false;
    render(draw(), root);
  });
}

export interface Address {
  parts: string[];
  query: URLSearchParams;
}

export function address(): Address {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export function go(hash: string): void {
  location.hash = hash;
}

/** Change the query behind `#` without a new entry in the history. */
export function refine(values: Record<string, string>): void {
  const { parts, query } = address();
  for (const [name, value] of Object.entries(values)) {
    if (value) query.set(name, value);
    else query.delete(name);
  }
  const text = query.toString();
  history.replaceState(null, "", `#/${parts.join("/")}${text ? `?${text}` : ""}`);
}
