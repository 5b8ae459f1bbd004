/** A file of a site, fetched page by page and given to the browser as one. */
import { api } from "../../shared/api";
import { collect } from "../../shared/download";
import type { FilePage } from "../model";
import { nameOf } from "./paths";

const PAGE_BYTES = 1 << 20;

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
