/** A paged list with its filters in the address, so that a list can be linked to and the back button keeps it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../api";
import type { Kind } from "../live";
import { address, refine, type View } from "../page";
import { Resource } from "../resource";
import { shown, type Fragment } from "../ui";

interface Filter {
  name: string;
  label: string;
  options: string[];
}

interface Listing<T> {
  title: string;
  path: string;
  kinds: Kind[];
  filters?: Filter[];
  searchable?: boolean;
  buttons?: () => Fragment;
  rows: (items: T[]) => TemplateResult;
}

const SETTLE_MILLISECONDS = 200;

export function list<T>(listing: Listing<T>): View {
  let timer: number | undefined;
  const page = new Resource<Page<T>>(
    (signal) => api.get(listing.path, Object.fromEntries(address().query), signal),
    listing.kinds,
  );
  const choose = (values: Record<string, string>) => {
    refine({ page: "", ...values });
    void page.load();
  };
  const typed = (event: InputEvent) => {
    clearTimeout(timer);
    const q = (event.target as HTMLInputElement).value;
    timer = window.setTimeout(() => choose({ q }), SETTLE_MILLISECONDS);
  };
  return {
    title: listing.title,
    draw: () => html`
      <div class="head"><h1>${listing.title}</h1>
        ${listing.searchable ? html`<input type="search" aria-label="Filter" placeholder="Filter" .defaultValue=${address().query.get("q") ?? ""} @input=${typed}>` : nothing}
        ${(listing.filters ?? []).map((filter) => html`<select aria-label=${filter.label} @change=${(event: Event) =>
          choose({ [filter.name]: (event.target as HTMLSelectElement).value })}>
          <option value="">${filter.label}: any</option>
          ${filter.options.map((option) => html`<option ?selected=${address().query.get(filter.name) === option}>${option}</option>`)}
        </select>`)}
        <span class="gap"></span>${listing.buttons?.() ?? nothing}
      </div>
      ${shown(page, (now) => html`${listing.rows(now.items)}${pager(now, (number) => choose({ page: String(number) }))}`)}`,
    dispose: () => {
      clearTimeout(timer);
      page.dispose();
    },
  };
}

function pager<T>(page: Page<T>, choose: (number: number) => void): Fragment {
  if (page.pages <= 1) return page.total ? html`<p class="quiet count">${page.total} in all</p>` : nothing;
  return html`<nav class="pager" aria-label="Pages">
    <button ?disabled=${page.page <= 1} @click=${() => choose(page.page - 1)}>Previous</button>
    <span>${page.page} of ${page.pages} · ${page.total} in all</span>
    <button ?disabled=${page.page >= page.pages} @click=${() => choose(page.page + 1)}>Next</button>
  </nav>`;
}
