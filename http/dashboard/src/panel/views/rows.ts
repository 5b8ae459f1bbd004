/** A list that belongs to a site: a heading with its buttons, the rows, or what to do where there are none. */
import { html, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { Resource } from "../../shared/resource";
import { shown, table, type Fragment } from "../../shared/ui";
import type { Site } from "../model";
import type { SitePart } from "./site";

interface Rows<T> {
  title: string;
  text?: string;
  path: string;
  heads: string[];
  row: (item: T, site: Site) => TemplateResult;
  buttons?: (site: Site) => Fragment;
  empty: string;
}

export function rows<T>(wanted: Rows<T>): SitePart {
  const items = new Resource<T[] | Page<T>>((signal) => api.get(wanted.path, {}, signal), ["site"]);
  return {
    draw: (site) => html`
      <div class="head"><h2>${wanted.title}</h2><span class="gap"></span>${wanted.buttons?.(site)}</div>
      ${wanted.text ? html`<p class="quiet">${wanted.text}</p>` : ""}
      ${shown(items, (all) =>
        table(
          wanted.heads,
          (Array.isArray(all) ? all : all.items).map((item) => wanted.row(item, site)),
          wanted.empty,
        ),
      )}`,
    dispose: () => items.dispose(),
  };
}

/** Several of them below one another. */
export function together(...parts: SitePart[]): SitePart {
  return {
    draw: (site) => html`${parts.map((part) => part.draw(site))}`,
    dispose: () => {
      for (const part of parts) part.dispose?.();
    },
  };
}
