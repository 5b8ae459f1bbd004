/** Single files of a machine's backup: it is opened on the machine's node, looked through, and closed. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { collect } from "../../shared/download";
import { address, changed, go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, bytes, failure, table, when, type Fragment } from "../../shared/ui";
import type { BackupEntry, BackupFilePart, BackupFolder, BackupVolume, Machine, Task } from "../model";
import { open as isOpen, progress } from "./tasks";

const PART_BYTES = 512 << 10;

/** What is behind the backup in the address: a volume's number, 0 for that of the system, and the names of a path. */
interface Place {
  volume: number;
  names: string[];
}

export function backupFilesView(machineId: string, backupId: string): View {
  let place = placed(address().parts);
  let offset = 0;
  let opening: Resource<Task> | null = null;
  let fetching: { name: string; got: number; size: number; stop: AbortController } | null = null;

  const machine = new Resource<Machine>((signal) => api.get(`/vms/${machineId}`, {}, signal));
  const folder = new Resource<BackupFolder>(async (signal) => {
    const found = await api.get<BackupFolder>(
      `/vms/${machineId}/backups/${backupId}/files`,
      { volume: place.volume, path: pathOf(place.names), offset },
      signal,
    );
    opening?.dispose();
    opening = null;
    return found;
  });

  const openFiles = async () => {
    const task = await api.post<Task>(`/vms/${machineId}/backups/${backupId}/files`);
    opening?.dispose();
    opening = new Resource<Task>(
      async (signal) => {
        const now = await api.get<Task>(`/tasks/${task.id}`, {}, signal);
        if (now.status === "succeeded") void folder.load();
        return now;
      },
      ["task"],
    );
    changed();
  };
  const close = async () => {
    await api.delete(`/vms/${machineId}/backups/${backupId}/files`);
    go(`#/machines/${machineId}`);
  };
  const turn = (to: number) => {
    offset = to;
    void folder.load();
  };
  /** Of the folder that is shown: another may be on its way. */
  const fetchFile = async ({ volume, path }: BackupFolder, entry: BackupEntry) => {
    const stop = new AbortController();
    fetching = { name: entry.name, got: 0, size: entry.size_bytes, stop };
    changed();
    let version: string | undefined;
    const part = async (start: number) => {
      const query = {
        volume,
        path: `${path === "/" ? "" : path}/${entry.name}`,
        offset: start,
        limit: PART_BYTES,
        ...(version ? { version } : {}),
      };
      const got = await api.get<BackupFilePart>(`/vms/${machineId}/backups/${backupId}/files/download`, query, stop.signal);
      version = got.version;
      return got;
    };
    try {
      await collect(entry.name, part, (got, size) => {
        fetching = { name: entry.name, got, size, stop };
        changed();
      });
    } catch (error) {
      if (!stop.signal.aborted) throw error;
    } finally {
      fetching = null;
      changed();
    }
  };

  const closed = (): TemplateResult => {
    const task = opening?.value;
    if (task && isOpen(task)) return html`<p class="wide"><a href="#/tasks/${task.id}">${task.op}</a> ${progress(task)}</p>`;
    return html`${failure(opening?.error ?? null)}
      ${task?.status === "failed" || task?.status === "cancelled" ? html`<p class="failure" role="alert">${task.error_message ?? task.message}</p>` : nothing}
      <p class="empty">The files of this backup are not open. Opening takes as long as a restoration; the machine is not affected.</p>
      <p><button class="primary" @click=${() => void attempt(openFiles)}>Open files</button></p>`;
  };

  const row = (shown: BackupFolder, entry: BackupEntry): TemplateResult => {
    const flying = fetching?.name === entry.name ? fetching : null;
    return html`<tr><td class="name ${entry.kind}">${
      entry.kind === "folder" || entry.kind === "link"
        ? html`<a href=${href(machineId, backupId, place.volume, [...place.names, entry.name])}>${entry.name}</a>${
            entry.target === null ? nothing : html` <span class="quiet">→ ${entry.target}</span>`
          }`
        : entry.name
    }</td>
      <td class="number">${entry.kind === "file" ? bytes(entry.size_bytes) : ""}</td><td class="mono">${entry.mode}</td><td>${when(entry.modified_at)}</td>
      <td class="act">${
        flying
          ? html`<progress max=${flying.size || 1} .value=${flying.got} aria-label="Downloaded"></progress>
            <button @click=${() => flying.stop.abort()}>Stop</button>`
          : entry.kind === "file" || entry.kind === "link"
            ? html`<button ?disabled=${fetching !== null} @click=${() => void attempt(() => fetchFile(shown, entry))}>Download</button>`
            : nothing
      }</td></tr>`;
  };

  const opened = (shown: BackupFolder): TemplateResult => html`
    ${volumes(machineId, backupId, shown)}
    ${crumbs(machineId, backupId, place)}
    ${table(
      ["Name", "Size", "Mode", "Changed", ""],
      shown.entries.map((entry) => row(shown, entry)),
      "Nothing is in this folder.",
    )}
    ${pages(shown, turn)}`;

  return {
    get title() {
      return `Files of a backup${machine.value ? ` of ${machine.value.name}` : ""}`;
    },
    follow: (parts) => {
      if (parts[0] !== "machines" || parts[1] !== machineId || parts[2] !== "backups" || parts[3] !== backupId) return false;
      place = placed(parts);
      turn(0);
      return true;
    },
    draw: () => {
      const shut = folder.error?.code === "not_ready";
      return html`
        <div class="head"><a class="quiet" href="#/machines/${machineId}">${machine.value?.name ?? "Machine"}</a><span class="quiet">/</span><h1>Files of a backup</h1>
          <span class="gap"></span>${folder.value && !shut ? html`<button @click=${() => void attempt(close)}>Close files</button>` : nothing}</div>
        ${
          shut
            ? closed()
            : folder.error
              ? html`${crumbs(machineId, backupId, place)}${failure(folder.error)}`
              : folder.value
                ? opened(folder.value)
                : html`<p class="quiet">Loading…</p>`
        }`;
    },
    dispose: () => {
      fetching?.stop.abort();
      opening?.dispose();
      machine.dispose();
      folder.dispose();
    },
  };
}

function placed(parts: string[]): Place {
  return { volume: Number(parts[5] ?? 0) || 0, names: parts.slice(6) };
}

function pathOf(names: string[]): string {
  return `/${names.join("/")}`;
}

function href(machineId: string, backupId: string, volume: number, names: string[]): string {
  return `#/${["machines", machineId, "backups", backupId, "files", volume, ...names.map(encodeURIComponent)].join("/")}`;
}

function crumbs(machineId: string, backupId: string, { volume, names }: Place): TemplateResult {
  return html`<nav class="crumbs" aria-label="Folder"><a href=${href(machineId, backupId, volume, [])}>/</a>${names.map(
    (name, index) =>
      html`<a href=${href(machineId, backupId, volume, names.slice(0, index + 1))} aria-current=${index === names.length - 1 ? "page" : nothing}>${name}</a>`,
  )}</nav>`;
}

/** Which file systems the backup has; one that cannot be read says so. */
function volumes(machineId: string, backupId: string, shown: BackupFolder): Fragment {
  if (shown.volumes.length < 2) return nothing;
  const words = (volume: BackupVolume) => `${volume.device}, ${volume.type}, ${bytes(volume.size_bytes)}`;
  return html`<nav class="tabs" aria-label="Volumes">${shown.volumes.map((volume) =>
    volume.state === "mounted"
      ? html`<a href=${href(machineId, backupId, volume.number, [])} aria-current=${volume.number === shown.volume ? "page" : nothing}>${words(volume)}</a>`
      : html`<span class="quiet">${words(volume)}: ${volume.state}</span>`,
  )}</nav>`;
}

function pages(shown: BackupFolder, turn: (offset: number) => void): Fragment {
  const end = shown.offset + shown.entries.length;
  const more = shown.cut ? html` <span class="quiet">The folder has more entries than can be listed.</span>` : nothing;
  if (shown.offset === 0 && end >= shown.total) return more;
  return html`<p>${shown.offset + 1} to ${end} of ${shown.total.toLocaleString()}
    ${shown.offset > 0 ? html`<button @click=${() => turn(Math.max(0, shown.offset - 1000))}>Before</button>` : nothing}
    ${end < shown.total ? html`<button @click=${() => turn(end)}>More</button>` : nothing}${more}</p>`;
}
