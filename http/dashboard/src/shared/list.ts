/** A paged list with its filters in the address, so that a list can be linked to and the back button keeps it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "./api";
import type { Kind } from "./changes";
import { address, refine, type View } from "./page";
import { Resource } from "./resource";
import { shown, type Fragment } from "./ui";

interface Filter<P> {
  name: string;
  label: string;
  /** Some are known only from an answer of the list. */
  options: string[] | ((page: P | null) => string[]);
  /** What the choice of none is called. */
  none?: string;
}

interface Listing<T, P extends Page<T>> {
  title: string;
  /** The list is a part of a view with another title. */
  inner?: boolean;
  path: string;
  kinds: Kind[];
  filters?: Filter<P>[];
  searchable?: boolean;
  buttons?: () => Fragment;
  /** What stands above and below the rows, of the same answer. */
  before?: (page: P) => Fragment;
  /** `filtered`: some may have been left out. */
  rows: (items: T[], filtered: boolean) => TemplateResult;
  after?: (page: P) => Fragment;
}

const SETTLE_MILLISECONDS = 200;

export function list<T, P extends Page<T> = Page<T>>(listing: Listing<T, P>): View & { load(): Promise<void> } {
  let timer: number | undefined;
  const page = new Resource<P>((signal) => api.get(listing.path, Object.fromEntries(address().query), signal), listing.kinds);
  const choose = (values: Record<string, string>) => {
    refine({ page: "", ...values });
    void page.load();
  };
  const typed = (event: InputEvent) => {
    clearTimeout(timer);
    const q = (event.target as HTMLInputElement).value;
    timer = window.setTimeout(() => choose({ q }), SETTLE_MILLISECONDS);
  };
  const filtered = () => [...address().query.keys()].some((name) => name !== "page" && name !== "sort");
  return {
    title: listing.title,
    load: () => page.load(),
    draw: () => html`
      <div class="head">${listing.inner ? html`<h2>${listing.title}</h2>` : html`<h1>${listing.title}</h1>`}
        ${listing.searchable ? html`<input type="search" aria-label="Filter" placeholder="Filter" .defaultValue=${address().query.get("q") ?? ""} @input=${typed}>` : nothing}
        ${(listing.filters ?? []).map(
          (filter) => html`<select aria-label=${filter.label} @change=${(event: Event) =>
            choose({ [filter.name]: (event.target as HTMLSelectElement).value })}>
          <option value="">${filter.label}: ${filter.none ?? "any"}</option>
          ${(typeof filter.options === "function" ? filter.options(page.value) : filter.options).map((option) => html`<option ?selected=${address().query.get(filter.name) === option}>${option}</option>`)}
        </select>`,
        )}
        <span class="gap"></span>${listing.buttons?.() ?? nothing}
      </div>
      ${shown(page, (now) => html`${listing.before?.(now) ?? nothing}${listing.rows(now.items, filtered())}${pager(now, (number) => choose({ page: String(number) }))}${listing.after?.(now) ?? nothing}`)}`,
    dispose: () => {
      clearTimeout(timer);
      page.dispose();
    },
  };
}

/** What the list's `page` and `pages` say, and the way to another. */
export function pager<T>(page: Page<T>, choose: (number: number) => void): Fragment {
  if (page.pages <= 1) return page.total ? html`<p class="quiet count">${page.total} in all</p>` : nothing;
  return html`<nav class="pager" aria-label="Pages">
    <button ?disabled=${page.page <= 1} @click=${() => choose(page.page - 1)}>Previous</button>
    <span>${page.page} of ${page.pages} · ${page.total} in all</span>
    <button ?disabled=${page.page >= page.pages} @click=${() => choose(page.page + 1)}>Next</button>
  </nav>`;
}
