/** Files given to the browser: put together here, or fetched page by page. Every page is compared with its sum. */
import { ApiError } from "./api";

interface Chunk {
  data_base64: string;
  sha256: string;
  size: number;
}

/** Give the browser a file that comes page by page; `page` fetches the page that starts at an offset. */
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
  return new ApiError(0, "invalid", "A part of the file arrived incomplete; nothing was saved.", "Try again.");
}

/** Give the browser a file that was put together here. */
export function give(content: Blob, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
