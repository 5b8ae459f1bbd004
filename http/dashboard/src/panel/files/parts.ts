/** A file sent in parts of half a megabyte, several at once. A part that was not taken is sent again. */
import { api, ApiError } from "../../shared/api";
import { Sha256 } from "./sha256";

/** An upload as the service has it: what came of it before is not sent again. */
export interface Started {
  received: readonly { start: number; end: number }[];
  chunk_bytes: number;
}

const AT_ONCE = 3;
const PART_TRIES = 5;
const RETRY_MILLISECONDS = 1000;
const PIECE = 0x8000;

/** `progressed` gets the number of bytes that have arrived. Returns the SHA-256 of the file; after a stop, of the part that was read. */
export async function sendParts(
  place: string,
  file: File,
  upload: Started,
  stop: AbortSignal,
  progressed: (sent: number) => void,
): Promise<string> {
  const sum = new Sha256();
  const flying = new Set<Promise<void>>();
  let sent = upload.received.reduce((total, range) => total + range.end - range.start, 0);
  progressed(sent);
  let failed: unknown = null;
  for (let offset = 0; offset < file.size && !failed && !stop.aborted; offset += upload.chunk_bytes) {
    const bytes = await read(file, offset, offset + upload.chunk_bytes);
    sum.add(bytes);
    if (upload.received.some(({ start, end }) => start <= offset && offset + bytes.length <= end)) continue;
    while (flying.size >= AT_ONCE) await Promise.race(flying);
    const part = put(place, offset, bytes, stop)
      .then(() => {
        sent = Math.min(file.size, sent + bytes.length);
        progressed(sent);
      })
      .catch((error: unknown) => {
        failed ??= error;
      })
      .finally(() => flying.delete(part));
    flying.add(part);
  }
  await Promise.all(flying);
  if (failed && !stop.aborted) throw failed;
  return sum.digest();
}

/** A part may be put twice; so one whose answer was lost is sent again. */
async function put(place: string, offset: number, bytes: Uint8Array, stop: AbortSignal): Promise<void> {
  const body = { offset, data_base64: base64(bytes) };
  for (let tried = 1; !stop.aborted; tried++) {
    try {
      await api.put(place, body);
      return;
    } catch (error) {
      const passes = error instanceof ApiError && [0, 429, 503].includes(error.status);
      if (!passes || tried >= PART_TRIES) throw error;
      await new Promise((resolve) => setTimeout(resolve, tried * RETRY_MILLISECONDS));
    }
  }
}

async function read(file: File, start: number, end: number): Promise<Uint8Array> {
  try {
    return new Uint8Array(await file.slice(start, end).arrayBuffer());
  } catch {
    throw new ApiError(0, "invalid", `${file.name} can no longer be read.`, "It was changed or moved: choose it again.");
  }
}

function base64(bytes: Uint8Array): string {
  let text = "";
  // More arguments than this are too many for a call.
  for (let at = 0; at < bytes.length; at += PIECE) text += String.fromCharCode(...bytes.subarray(at, at + PIECE));
  return btoa(text);
}
