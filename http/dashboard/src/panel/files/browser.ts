/** The files of a site, folder by folder: what is in one, and what is done with it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { repeat } from "lit-html/directives/repeat.js";
import { api } from "../../shared/api";
import { address, changed } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, bytes, shown, when } from "../../shared/ui";
import { order } from "../form";
import type { FileEntry, FileList as Listing, Job, Site } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "../views/site";
import { download } from "./download";
import { editor } from "./editor";
import { above, isArchive, isText, joined, placeOf } from "./paths";
import { sendingList } from "./sending-list";
import { onUploaded, send } from "./uploads";
import { follow, jobLines, onWorkDone } from "./work";

const PAGE = 500;

/** A tab of a site: the folder that the rest of the address names, or a file of it in the editor. */
export function filesTab(site: Site, viewer: Viewer, rest: string[]): SitePart {
  const folder = rest.join("/");
  const files = folderView(site.id, folder, viewer);
  let edited: { name: string; part: ReturnType<typeof editor> } | null = null;
  return {
    draw: () => {
      const name = address().query.get("edit");
      if (name !== (edited?.name ?? null)) {
        edited?.part.dispose?.();
        edited = name === null ? null : { name, part: editor(site.id, joined(folder, name), viewer.may("file.write")) };
        if (!edited) void files.load();
      }
      return edited ? edited.part.draw() : files.draw();
    },
    dispose: () => {
      edited?.part.dispose?.();
      files.dispose();
    },
  };
}

function folderView(site: string, folder: string, { may }: Viewer) {
  const chosen = new Set<string>();
  const fetching = new Map<string, { got: number; size: number; stop: AbortController }>();
  let limit = PAGE;
  let over = false;

  const list = new Resource<Listing>(async (signal) => {
    const found = await api.get<Listing>(`/sites/${site}/files`, { path: folder, limit }, signal);
    const names = new Set(found.entries.map((entry) => entry.name));
    for (const name of chosen) if (!names.has(name)) chosen.delete(name);
    return found;
  });
  const reload = () => list.load();
  const unlisten = [
    onUploaded((done) => {
      if (done.site === site && done.folder === folder) void reload();
    }),
    onWorkDone((of) => {
      if (of === site) void reload();
    }),
  ];

  const picked = (): FileEntry[] => (list.value?.entries ?? []).filter((entry) => chosen.has(entry.name));
  const paths = () => picked().map((entry) => joined(folder, entry.name));
  const upload = (files: FileList | null) => files && may("file.upload") && send(site, folder, Array.from(files));

  async function fetchFile(entry: FileEntry): Promise<void> {
    const stop = new AbortController();
    fetching.set(entry.name, { got: 0, size: entry.size, stop });
    changed();
    try {
      await attempt(() =>
        download(
          site,
          joined(folder, entry.name),
          (got, size) => {
            fetching.set(entry.name, { got, size, stop });
            changed();
          },
          stop.signal,
        ),
      );
    } catch (error) {
      if (!(error instanceof DOMException && error.name === "AbortError")) throw error;
    } finally {
      fetching.delete(entry.name);
      changed();
    }
  }

  const ordered = { reload, site, folder };
  const dropped = (event: DragEvent) => {
    event.preventDefault();
    over = false;
    upload(event.dataTransfer?.files ?? null);
    changed();
  };
  const hovered = (now: boolean) => (event: DragEvent) => {
    event.preventDefault();
    if (over === now) return;
    over = now;
    changed();
  };

  const toolbar = (): TemplateResult => {
    const some = picked();
    const [one] = some;
    const single = some.length === 1 && one ? one : null;
    const path = single ? joined(folder, single.name) : "";
    return html`<div class="head files-bar">
      ${
        may("file.upload")
          ? html`<label class="button primary">Upload<input type="file" multiple hidden @change=${(event: Event) => {
              const input = event.target as HTMLInputElement;
              upload(input.files);
              input.value = "";
            }}></label>`
          : nothing
      }
      ${may("file.mkdir") ? html`<button @click=${() => makeFolder(ordered)}>New folder</button>` : nothing}
      ${may("file.write") ? html`<button @click=${() => makeFile(ordered)}>New file</button>` : nothing}
      <button class="plain" title="Reload" @click=${() => void reload()}>Reload</button>
      <span class="gap"></span>
      ${some.length ? html`<span class="quiet">${some.length} chosen</span>` : nothing}
      ${single?.kind === "file" && may("file.download") ? html`<button @click=${() => void fetchFile(single)}>Download</button>` : nothing}
      ${single && may("file.rename") ? html`<button @click=${() => rename(ordered, single.name)}>Rename</button>` : nothing}
      ${some.length && may("file.move") ? html`<button @click=${() => move(ordered, paths())}>Move</button>` : nothing}
      ${single && may("file.copy") ? html`<button @click=${() => copy(ordered, path)}>Copy</button>` : nothing}
      ${single && single.kind !== "link" && may("file.chmod") ? html`<button @click=${() => permissions(ordered, path, single.mode)}>Permissions</button>` : nothing}
      ${single?.kind === "file" && isArchive(single.name) && may("file.extract") ? html`<button @click=${() => unpack(ordered, path)}>Extract</button>` : nothing}
      ${some.length && may("file.compress") ? html`<button @click=${() => pack(ordered, paths())}>Compress</button>` : nothing}
      ${some.length && may("file.delete") ? html`<button class="danger" @click=${() => remove(ordered, paths())}>Delete</button>` : nothing}
    </div>`;
  };

  const row = (entry: FileEntry): TemplateResult => {
    const flying = fetching.get(entry.name);
    const choose = (event: Event) => {
      if ((event.target as HTMLInputElement).checked) chosen.add(entry.name);
      else chosen.delete(entry.name);
      changed();
    };
    return html`<tr class=${chosen.has(entry.name) ? "chosen" : ""}>
      <td class="pick"><input type="checkbox" aria-label="Choose ${entry.name}" .checked=${chosen.has(entry.name)} ?disabled=${entry.escaped !== null} @change=${choose}></td>
      <td class="name ${entry.kind}">${opened(entry)}${entry.own ? nothing : html` <span class="quiet">not the site's own</span>`}
        ${
          flying
            ? html` <progress max=${flying.size || 1} .value=${flying.got} aria-label="Downloaded"></progress>
          <button @click=${() => flying.stop.abort()}>Stop</button>`
            : nothing
        }</td>
      <td class="number">${entry.kind === "file" ? bytes(entry.size) : ""}</td><td class="mono">${entry.mode}</td><td>${when(entry.modified_at)}</td></tr>`;
  };
  const opened = (entry: FileEntry): TemplateResult => {
    if (entry.escaped !== null) return html`${entry.name} ${unnamable(ordered, entry.name, entry.escaped, may)}`;
    if (entry.kind === "folder") return html`<a href=${placeOf(site, joined(folder, entry.name))}>${entry.name}</a>`;
    if (entry.kind === "file" && may("file.read", "file.download"))
      return isText(entry.name, entry.size)
        ? html`<a href=${placeOf(site, folder, entry.name)}>${entry.name}</a>`
        : html`<button class="link" @click=${() => void fetchFile(entry)}>${entry.name}</button>`;
    return html`${entry.name}${entry.target === null ? nothing : html` <span class="quiet">→ ${entry.target}</span>`}`;
  };

  const everything = (event: Event) => {
    chosen.clear();
    if ((event.target as HTMLInputElement).checked)
      for (const entry of list.value?.entries ?? []) if (entry.escaped === null) chosen.add(entry.name);
    changed();
  };

  return {
    load: reload,
    draw: () => html`
      ${crumbs(site, folder)}
      ${toolbar()}
      ${jobLines(site).map((line) => line.draw())}
      ${sendingList(site)}
      <div class="files ${over ? "over" : ""}" @dragover=${hovered(true)} @dragleave=${hovered(false)} @drop=${dropped}>
      ${shown(list, (now) =>
        now.entries.length
          ? html`<div class="scroll"><table>
          <thead><tr><th class="pick"><input type="checkbox" aria-label="Choose all" .checked=${chosen.size > 0 && chosen.size === now.entries.length} @change=${everything}></th>
            <th scope="col">Name</th><th scope="col" class="number">Size</th><th scope="col">Mode</th><th scope="col">Changed</th></tr></thead>
          <tbody>${repeat(now.entries, (entry) => entry.escaped ?? entry.name, row)}</tbody></table></div>
          ${now.total > now.entries.length ? html`<p class="pager"><button @click=${more}>Show more: ${now.entries.length} of ${now.total} are here</button></p>` : html`<p class="quiet count">${now.total} in all</p>`}`
          : html`<p class="empty">Nothing is in this folder.${may("file.upload") ? " Drop files here to upload them." : nothing}</p>`,
      )}</div>`,
    dispose: () => {
      for (const end of unlisten) end();
      list.dispose();
      for (const { stop } of fetching.values()) stop.abort();
    },
  };

  function more(): void {
    limit = Math.min(limit * 4, 5000);
    void list.load();
  }
}

/** What the orders below need of the folder that they are given in. */
interface Place {
  site: string;
  folder: string;
  reload: () => Promise<void>;
}

function crumbs(site: string, folder: string): TemplateResult {
  const parts = folder.split("/").filter(Boolean);
  return html`<nav class="crumbs" aria-label="Folder"><a href=${placeOf(site, "")}>site</a>${parts.map(
    (part, index) =>
      html`<span class="quiet">/</span><a href=${placeOf(site, parts.slice(0, index + 1).join("/"))} aria-current=${index === parts.length - 1 ? "page" : nothing}>${part}</a>`,
  )}</nav>`;
}

function makeFolder({ site, folder, reload }: Place): void {
  named("New folder", "Create", async (name) => {
    await api.post(`/sites/${site}/files/mkdir`, { path: joined(folder, name) });
    await reload();
  });
}

function makeFile({ site, folder }: Place): void {
  named("New file", "Create", async (name) => {
    await api.put(`/sites/${site}/files/content`, { path: joined(folder, name), content: "", replace: false });
    location.hash = placeOf(site, folder, name);
  });
}

function named(title: string, action: string, made: (name: string) => Promise<void>): void {
  ask({ title, action, fields: [{ name: "name", label: "Name", required: true }], submit: async ({ name = "" }) => made(name.trim()) });
}

function rename({ site, folder, reload }: Place, name: string): void {
  order("file.rename", {
    title: `Rename ${name}`,
    action: "Rename",
    known: { id: site, path: joined(folder, name) },
    initial: { name },
    fields: ["name", "replace"],
    wishes: { replace: { label: "Replace what is there" } },
    done: reload,
  });
}

/** What can be done with an entry whose name no path can have: bytes that are not UTF-8, or control characters. */
function unnamable({ site, folder, reload }: Place, name: string, escaped: string, may: Viewer["may"]): TemplateResult {
  const path = joined(folder.split("/").filter(Boolean).map(encodeURIComponent).join("/"), escaped);
  const rename = () =>
    order("file.rename", {
      title: `Rename ${name}`,
      text: "Its name has characters that cannot be shown.",
      action: "Rename",
      known: { id: site, path, escaped: true },
      initial: { name: name.replace(/[\u0000-\u001f\u007f\ufffd]/g, "_") },
      fields: ["name", "replace"],
      wishes: { replace: { label: "Replace what is there" } },
      done: reload,
    });
  const remove = () =>
    order("file.delete", {
      title: `Delete ${name}?`,
      text: "For good, a folder with all that is in it. A backup is the only way back.",
      action: "Delete",
      dangerous: true,
      known: { id: site, paths: [path], escaped: true },
      done: reload,
    });
  return html`${may("file.rename") ? html`<button @click=${rename}>Rename</button>` : nothing}
    ${may("file.delete") ? html`<button class="danger" @click=${remove}>Delete</button>` : nothing}`;
}

function copy({ site, reload }: Place, path: string): void {
  order("file.copy", {
    title: `Copy ${path}`,
    action: "Copy",
    known: { id: site, path },
    initial: { to: copied(path) },
    wishes: { to: { label: "To", hint: "The whole path of the copy" } },
    done: reload,
  });
}

/** `index.html` is copied to `index-copy.html`. */
function copied(path: string): string {
  const at = path.lastIndexOf(".");
  return at > above(path).length + 1 ? `${path.slice(0, at)}-copy${path.slice(at)}` : `${path}-copy`;
}

function move({ site, folder, reload }: Place, paths: string[]): void {
  ask({
    title: paths.length === 1 ? `Move ${paths[0]}` : `Move ${paths.length} items`,
    fields: [
      { name: "to", label: "Into the folder", value: folder, hint: "Its path; empty is the site's own folder" },
      { name: "replace", label: "Replace what is there", kind: "checkbox" },
    ],
    action: "Move",
    submit: async ({ to = "", replace }) => {
      const folder = to.trim().replace(/^\/+|\/+$/g, "");
      for (const path of paths) {
        const target = joined(folder, path.slice(above(path).length).replace(/^\//, ""));
        await api.post(`/sites/${site}/files/move`, { path, to: target, replace: replace === "on" });
      }
      await reload();
    },
  });
}

function permissions({ site, reload }: Place, path: string, mode: string): void {
  order("file.chmod", {
    title: `Permissions of ${path}`,
    action: "Set",
    known: { id: site, path },
    initial: { mode },
    wishes: { mode: { hint: "Octal, as 644: read and write for the site, read for the web server" } },
    done: reload,
  });
}

function unpack({ site, folder }: Place, path: string): void {
  order<Job>("file.extract", {
    title: `Extract ${path}`,
    text: "It is done as a job: the archive stays, and what is unpacked is shown here when it has ended.",
    action: "Extract",
    known: { id: site, path },
    initial: { to: folder },
    fields: ["to", "replace", ...(path.toLowerCase().endsWith(".zip") ? ["encoding"] : [])],
    wishes: {
      to: { label: "Into the folder", hint: "Created if missing; empty is the site's own folder" },
      replace: { label: "Replace files that are there" },
      encoding: { label: "Names are in", hint: "Only if the archive does not say it: gb18030 for China, shift_jis for Japan" },
    },
    done: (job) => follow(site, job),
  });
}

function pack({ site, folder }: Place, paths: string[]): void {
  order<Job>("file.compress", {
    title: paths.length === 1 ? `Compress ${paths[0]}` : `Compress ${paths.length} items`,
    action: "Compress",
    known: { id: site, paths },
    initial: { to: joined(folder, "archive.zip") },
    fields: ["to", "format"],
    wishes: { to: { label: "Archive", hint: "Its whole path" } },
    done: (job) => follow(site, job),
  });
}

function remove({ site, reload }: Place, paths: string[]): void {
  order("file.delete", {
    title: paths.length === 1 ? `Delete ${paths[0]}?` : `Delete ${paths.length} items?`,
    text: "For good, folders with all that is in them. A backup is the only way back.",
    action: "Delete",
    dangerous: true,
    known: { id: site, paths },
    done: reload,
  });
}
