/** A file, fetched page by page and given to the browser as one. Every page is compared with its sum. */
import { api, ApiError } from "../../shared/api";
import { give } from "../../shared/download";
import type { FilePage } from "../model";
import { nameOf } from "./paths";

const PAGE_BYTES = 1 << 20;

interface Chunk {
  data_base64: string;
  sha256: string;
  size: number;
}

/** `told`: how much of it is here, of how much. Raises `ApiError` when it changed meanwhile, or came damaged. */
export async function download(site: string, path: string, told: (got: number, size: number) => void, stop: AbortSignal): Promise<void> {
  let version: string | undefined;
  const page = async (offset: number) => {
    const query = { path, offset, limit: PAGE_BYTES, ...(version ? { version } : {}) };
    const got = await api.get<FilePage>(`/sites/${site}/files/download`, query, stop);
    version = got.version;
    return got;
  };
  await collect(nameOf(path), page, told);
}

/** Give the browser a file that comes page by page; `page` fetches the one that begins there. */
export async function collect(
  name: string,
  page: (offset: number) => Promise<Chunk>,
  told: (got: number, size: number) => void = () => {},
): Promise<void> {
  const pages: BlobPart[] = [];
  let got = 0;
  for (;;) {
    const { data_base64, sha256, size } = await page(got);
    const bytes = Uint8Array.from(atob(data_base64), (character) => character.charCodeAt(0));
    await compare(bytes, sha256);
    pages.push(bytes);
    got += bytes.length;
    told(got, size);
    if (got >= size) break;
    if (!bytes.length) throw damaged();
  }
  give(new Blob(pages), name);
}

async function compare(bytes: Uint8Array<ArrayBuffer>, sum: string): Promise<void> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  const found = [...digest].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (found !== sum) throw damaged();
}

function damaged(): ApiError {
  return new ApiError(0, "invalid", "A part of the file did not arrive whole; nothing was saved.", "Try again.");
}
