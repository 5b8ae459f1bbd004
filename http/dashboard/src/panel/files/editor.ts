/**
 * A text file, edited. It is saved only if nobody has changed it since it was opened; otherwise the editor's
 * user decides. Unsaved text stays while the page is open, and leaving it asks first.
 */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type ApiError, failureOf } from "../../shared/api";
import { changed, type Part } from "../../shared/page";
import { ask, bytes, failure, note } from "../../shared/ui";
import type { FileContent, FileWritten } from "../model";
import { above, nameOf, placeOf } from "./paths";

interface Draft {
  /** As it was when it was opened. */
  before: string;
  sha256: string;
  text: string;
}

const drafts = new Map<string, Draft>();

addEventListener("beforeunload", (event) => {
  if ([...drafts.values()].some((draft) => draft.text !== draft.before)) event.preventDefault();
});

/** `writable`: whether the viewer may save it. */
export function editor(site: string, path: string, writable: boolean): Part {
  const key = `${site}/${path}`;
  let error: ApiError | null = null;
  let busy = false;
  let draft = drafts.get(key) ?? null;

  async function load(): Promise<void> {
    try {
      const file = await api.get<FileContent>(`/sites/${site}/files/content`, { path });
      keep({ before: file.content, sha256: file.sha256, text: file.content });
      error = null;
    } catch (thrown) {
      error = failureOf(thrown);
    }
    changed();
  }

  function keep(value: Draft): void {
    draft = value;
    drafts.set(key, value);
  }

  async function save(): Promise<void> {
    if (!draft || busy) return;
    const { text, sha256 } = draft;
    busy = true;
    error = null;
    changed();
    try {
      const written = await api.put<FileWritten>(`/sites/${site}/files/content`, { path, content: text, expected_sha256: sha256 });
      // What was typed meanwhile is not saved yet.
      keep({ before: text, sha256: written.sha256, text: draft?.text ?? text });
      note("Saved.");
    } catch (thrown) {
      const problem = failureOf(thrown);
      error = problem;
      if (problem.code === "conflict") decide(text);
    } finally {
      busy = false;
      changed();
    }
  }

  function decide(text: string): void {
    ask({
      title: "Somebody else has changed the file",
      text: "It is not what it was when you opened it. Your changes are still here and nothing was written.",
      fields: [
        {
          name: "choice",
          label: "Version to keep",
          kind: "select",
          options: [
            { value: "mine", label: "Mine: write it over theirs" },
            { value: "theirs", label: "Theirs: forget my changes and show it" },
          ],
        },
      ],
      action: "Continue",
      submit: async ({ choice }) => {
        const now = await api.get<FileContent>(`/sites/${site}/files/content`, { path });
        keep({ before: now.content, sha256: now.sha256, text: choice === "mine" ? text : now.content });
        if (choice === "mine") await save();
        error = null;
        changed();
      },
    });
  }

  const typed = (event: Event) => {
    if (!draft) return;
    draft.text = (event.target as HTMLTextAreaElement).value;
    changed();
  };
  const pressed = (event: KeyboardEvent) => {
    if (!writable) return;
    if ((event.ctrlKey || event.metaKey) && event.key === "s") {
      event.preventDefault();
      void save();
    } else if (event.key === "Tab" && !event.shiftKey && !event.ctrlKey && !event.altKey) {
      event.preventDefault();
      // The only way that leaves it on the undo stack.
      document.execCommand("insertText", false, "\t");
    }
  };
  const leave = (event: Event) => {
    if (!draft || draft.text === draft.before) return void drafts.delete(key);
    event.preventDefault();
    ask({
      title: "Leave without saving?",
      text: "Your changes are forgotten.",
      action: "Discard",
      dangerous: true,
      submit: async () => {
        drafts.delete(key);
        location.hash = placeOf(site, above(path));
      },
    });
  };
  const heading = (): TemplateResult => {
    const dirty = draft !== null && draft.text !== draft.before;
    return html`<div class="head"><a class="button" href=${placeOf(site, above(path))} @click=${leave}>Back to the files</a>
      <h2>${nameOf(path)}</h2><span class="quiet">${dirty ? "not saved" : draft ? bytes(new Blob([draft.text]).size) : ""}</span>
      <span class="gap"></span>
      ${writable ? html`<button class="primary" ?disabled=${!dirty || busy} @click=${() => void save()}>Save</button>` : nothing}</div>`;
  };

  if (!draft) void load();
  return {
    draw: () => html`${heading()}${failure(error)}
      ${
        draft
          ? html`<textarea class="editor" aria-label="Content of ${nameOf(path)}" spellcheck="false" ?readonly=${!writable} .value=${draft.text} @input=${typed} @keydown=${pressed}></textarea>`
          : error
            ? nothing
            : html`<p class="quiet">Loading…</p>`
      }`,
    dispose: () => {
      if (draft && draft.text === draft.before) drafts.delete(key);
    },
  };
}
