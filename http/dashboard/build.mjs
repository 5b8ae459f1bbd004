// Bundles the pages of each service into a folder of its own below the one named by the first argument: scripts and
// styles with their content's hash in the name, each beside its gzipped self, and one HTML file a page that names them.
// Nothing in a page is inline, so a strict Content-Security-Policy holds.
import { build } from "esbuild";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { gzipSync } from "node:zlib";

const out = process.argv[2];
if (!out) throw new Error("usage: node build.mjs OUTPUT_FOLDER");

const ICON = "src/shared/icon.svg";
/** `pages`: each page's file and the template it is made from, where `SERVICE` stands for the service's folder. */
const SERVICES = {
  controller: {
    entryPoints: {
      dashboard: "src/controller/main.ts",
      vnc: "src/controller/console/vnc.ts",
      terminal: "src/controller/console/terminal.ts",
      "dashboard-style": "src/shared/dashboard.css",
      "console-style": "src/controller/console/console.css",
      icon: ICON,
    },
    pages: { index: "application", vnc: "vnc", terminal: "terminal" },
  },
  panel: {
    entryPoints: { panel: "src/panel/main.ts", "dashboard-style": "src/shared/dashboard.css", icon: ICON },
    pages: { index: "application" },
  },
};

await rm(out, { recursive: true, force: true });
for (const [service, parts] of Object.entries(SERVICES)) await bundle(service, parts);

async function bundle(service, { entryPoints, pages }) {
  const folder = join(out, service);
  await mkdir(join(folder, "assets"), { recursive: true });
  const { metafile } = await build({
    entryPoints,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    entryNames: "[name]-[hash]",
    loader: { ".svg": "copy" },
    legalComments: "linked",
    metafile: true,
    outdir: join(folder, "assets"),
  });

  const assets = new Map();
  for (const [path, output] of Object.entries(metafile.outputs)) {
    if (output.entryPoint) assets.set(output.entryPoint, `/assets/${basename(path)}`);
    else if (output.inputs[ICON]) assets.set(ICON, `/assets/${basename(path)}`);
  }

  for (const [page, from] of Object.entries(pages)) {
    const template = await readFile(`pages/${from}.html`, "utf8");
    const text = template.replaceAll(/\{\{(.+?)\}\}/g, (_, named) => {
      const source = named.replace("SERVICE", service);
      const asset = assets.get(source);
      if (!asset) throw new Error(`pages/${from}.html names ${source}, which is not built`);
      return asset;
    });
    await writeFile(join(folder, `${page}.html`), text);
  }

  for (const name of await readdir(join(folder, "assets"))) {
    const file = join(folder, "assets", name);
    await writeFile(`${file}.gz`, gzipSync(await readFile(file), { level: 9 }));
  }
}
