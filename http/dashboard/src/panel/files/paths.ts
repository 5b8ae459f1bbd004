/** Paths beneath a site's folder, as the API has them: `public/index.html`, and "" for the folder itself. */

export function joined(folder: string, name: string): string {
  return folder ? `${folder}/${name}` : name;
}

export function above(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf("/")));
}

export function nameOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Where the page shows a folder of a site, or edits the file `edit` of it. */
export function placeOf(site: string, folder: string, edit?: string): string {
  const parts = folder.split("/").filter(Boolean).map(encodeURIComponent);
  return `#/${["sites", site, "files", ...parts].join("/")}${edit === undefined ? "" : `?edit=${encodeURIComponent(edit)}`}`;
}

export function isArchive(name: string): boolean {
  return /\.(zip|tar|tar\.gz|tgz|tar\.bz2|tar\.xz)$/i.test(name);
}

const MAX_TEXT_BYTES = 512 << 10;
const NO_TEXT =
  /\.(zip|tar|gz|tgz|bz2|xz|7z|rar|png|jpe?g|gif|webp|avif|ico|bmp|tiff?|pdf|mp[34]|m4[av]|mov|avi|webm|ogg|wav|flac|woff2?|ttf|otf|eot|exe|bin|iso|so|phar|sqlite3?|db)$/i;

/** Whether a file is likely one that is edited; others are downloaded. */
export function isText(name: string, size: number): boolean {
  return size <= MAX_TEXT_BYTES && !NO_TEXT.test(name);
}
