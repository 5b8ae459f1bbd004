// Bundles the pages into the folder named by the first argument: scripts and styles with their content's hash in the
// name, each beside its gzipped self, and one HTML file a page that names them. Nothing in a page is inline, so a strict
// Content-Security-Policy holds.
import { build } from "esbuild";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { gzipSync } from "node:zlib";

const out = process.argv[2];
if (!out) throw new Error("usage: node build.mjs OUTPUT_FOLDER");

await rm(out, { recursive: true, force: true });
await mkdir(join(out, "assets"), { recursive: true });

const { metafile } = await build({
  entryPoints: {
    dashboard: "src/main.ts",
    vnc: "src/console/vnc.ts",
    terminal: "src/console/terminal.ts",
    "dashboard-style": "src/dashboard.css",
    "console-style": "src/console/console.css",
    icon: "src/icon.svg",
  },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  entryNames: "[name]-[hash]",
  loader: { ".svg": "copy" },
  legalComments: "linked",
  metafile: true,
  outdir: join(out, "assets"),
});

const assets = new Map();
for (const [path, output] of Object.entries(metafile.outputs)) {
  if (output.entryPoint) assets.set(output.entryPoint, `/assets/${basename(path)}`);
  else if (output.inputs["src/icon.svg"]) assets.set("src/icon.svg", `/assets/${basename(path)}`);
}

for (const page of ["index", "vnc", "terminal"]) {
  const template = await readFile(`pages/${page}.html`, "utf8");
  const text = template.replaceAll(/\{\{(.+?)\}\}/g, (_, source) => {
    const asset = assets.get(source);
    if (!asset) throw new Error(`pages/${page}.html names ${source}, which is not built`);
    return asset;
  });
  await writeFile(join(out, `${page}.html`), text);
}

for (const name of await readdir(join(out, "assets"))) {
  const file = join(out, "assets", name);
  await writeFile(`${file}.gz`, gzipSync(await readFile(file), { level: 9 }));
}
