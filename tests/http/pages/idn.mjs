// Domain names as the pages show them: run in http/dashboard with the names, as a list in JSON, on standard input.
import { mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { text } from "node:stream/consumers";

const { build } = createRequire(`${process.cwd()}/`)("esbuild");
const outfile = join(mkdtempSync(join(tmpdir(), "svc-pages-")), "idn.mjs");
await build({ entryPoints: ["src/shared/idn.ts"], bundle: true, format: "esm", outfile });
const { inLetters } = await import(outfile);
console.log(JSON.stringify(JSON.parse(await text(process.stdin)).map(inLetters)));
