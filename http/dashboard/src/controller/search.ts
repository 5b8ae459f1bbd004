/** Search from the header: the controller's own, over everything the caller may see. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, failureOf } from "../shared/api";
import { changed, go } from "../shared/page";
import { note } from "../shared/ui";

interface SearchResult {
  kind: string;
  id: string;
  name: string;
  detail?: string | null;
}

const PLACES: Record<string, string> = { vm: "machines", node: "nodes", task: "tasks", image: "images", user: "people" };
const SETTLE_MILLISECONDS = 150;

let results: SearchResult[] | null = null;
let timer: number | undefined;
let asked = 0;

export function searchBox(): TemplateResult {
  return html`<form class="search" role="search" @submit=${first} @focusout=${leave}>
    <input type="search" aria-label="Search" placeholder="Search (press /)" autocomplete="off" spellcheck="false"
      @input=${(event: InputEvent) => look((event.target as HTMLInputElement).value.trim())}>
    ${
      results
        ? html`<div class="results">
      ${
        results.length
          ? results.map(
              (result) => html`<a href=${place(result)} @click=${close}>
        <b>${result.name}</b> <span class="quiet">${result.detail || result.kind}</span></a>`,
            )
          : html`<p class="quiet">Nothing found.</p>`
      }
    </div>`
        : nothing
    }
  </form>`;
}

function place(result: SearchResult): string {
  const section = PLACES[result.kind] ?? "";
  return section === "images" || section === "people" ? `#/${section}` : `#/${section}/${result.id}`;
}

function look(text: string): void {
  clearTimeout(timer);
  const mine = ++asked;
  if (!text) {
    close();
    return;
  }
  timer = window.setTimeout(async () => {
    try {
      const found = await api.get<SearchResult[]>("/search", { q: text });
      if (mine === asked) results = found;
    } catch (thrown) {
      const error = failureOf(thrown);
      note(error.message, true);
    }
    changed();
  }, SETTLE_MILLISECONDS);
}

function first(event: Event): void {
  event.preventDefault();
  const [result] = results ?? [];
  if (result) {
    go(place(result));
    close();
  }
}

function leave(event: FocusEvent): void {
  if (!(event.currentTarget as HTMLElement).contains(event.relatedTarget as HTMLElement | null)) close();
}

function close(): void {
  asked++;
  results = null;
  changed();
}

addEventListener("keydown", (event) => {
  const target = event.target as HTMLElement;
  if (event.key === "/" && !target.matches("input, textarea, select") && !document.querySelector("dialog[open]")) {
    event.preventDefault();
    document.querySelector<HTMLInputElement>(".search input")?.focus();
  } else if (event.key === "Escape" && results) close();
});
