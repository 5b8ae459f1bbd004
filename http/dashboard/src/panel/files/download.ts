/** A file of a site, fetched page by page and given to the browser as one. Every page is compared with its sum. */
import { api, ApiError } from "../../shared/api";
import type { FilePage } from "../model";
import { nameOf } from "./paths";

const PAGE_BYTES = 1 << 20;

/** `told`: how much of it is here, of how much. Raises `ApiError` when it changed meanwhile, or came damaged. */
export async function download(site: string, path: string, told: (got: number, size: number) => void, stop: AbortSignal): Promise<void> {
  const pages: BlobPart[] = [];
  let got = 0;
  let version: string | undefined;
  for (;;) {
    const query = { path, offset: got, limit: PAGE_BYTES, ...(version ? { version } : {}) };
    const page = await api.get<FilePage>(`/sites/${site}/files/download`, query, stop);
    const bytes = Uint8Array.from(atob(page.data_base64), (character) => character.charCodeAt(0));
    await compare(bytes, page.sha256);
    pages.push(bytes);
    version = page.version;
    got += bytes.length;
    told(got, page.size);
    if (got >= page.size) break;
    if (!bytes.length) throw damaged();
  }
  give(new Blob(pages), nameOf(path));
}

async function compare(bytes: Uint8Array<ArrayBuffer>, sum: string): Promise<void> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const found = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== sum) throw damaged();
}

function damaged(): ApiError {
  return new ApiError(0, "invalid", "A part of the file did not arrive whole; nothing was saved.", "Try again.");
}

function give(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
