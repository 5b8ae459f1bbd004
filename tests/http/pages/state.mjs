// What is shown after a connection broke off in the midst of an answer: run in http/dashboard, tells it as JSON.
import { mkdtempSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";

const { build } = createRequire(`${process.cwd()}/`)("esbuild");
const outfile = join(mkdtempSync(join(tmpdir(), "svc-pages-")), "state.mjs");
const page = {
  name: "a page that draws nothing",
  setup: (bundler) => {
    bundler.onResolve({ filter: /\/page$/ }, () => ({ path: "page", namespace: "stub" }));
    bundler.onLoad({ filter: /.*/, namespace: "stub" }, () => ({ contents: "export const changed = () => {};" }));
  },
};
const entry = `export { Resource } from "./shared/resource"; export { announce } from "./shared/changes";
  export { api } from "./shared/api"; export * as uploads from "./panel/files/uploads";`;
await build({ stdin: { contents: entry, resolveDir: "src" }, bundle: true, format: "esm", outfile, plugins: [page] });

// Nobody waits here: what is to be done later is done next.
const later = globalThis.setTimeout;
globalThis.setTimeout = (work, _, ...given) => later(work, 0, ...given);
globalThis.window = globalThis;
globalThis.dispatchEvent = () => true;
console.error = () => {};

const broken = { status: 200, headers: new Headers({ "Content-Type": "application/json" }) };
broken.text = () => Promise.reject(new TypeError("network error"));
const said = (value) => new Response(JSON.stringify(value), { headers: { "Content-Type": "application/json" } });
let requests = [];
let answer = () => broken;
globalThis.fetch = async (url, { method }) => {
  requests.push(`${method} ${url.replace("/api/v1", "")}`);
  return answer(method, url);
};

const { Resource, announce, api, uploads } = await import(outfile);

async function until(holds) {
  for (let turn = 0; turn < 10_000 && !holds(); turn++) await new Promise((resolve) => setImmediate(resolve));
  return holds();
}

const told = {};
answer = () => said("first");
const shown = new Resource((signal) => api.get("/thing", {}, signal), ["site"]);
await until(() => shown.value === "first");

requests = [];
answer = () => broken;
announce("site");
told.failureShown = await until(() => shown.error !== null);
told.message = shown.error?.message;
told.readAgain = requests.length;

answer = () => said("second");
announce("site");
told.shownAgain = await until(() => shown.value === "second" && shown.error === null);

// A fault of the view's own does not freeze it either.
let faulty = true;
const own = new Resource(async () => (faulty ? undefined.of : "well"), ["job"]);
told.faultShown = await until(() => own.error !== null);
faulty = false;
announce("job");
told.faultOver = await until(() => own.value === "well" && own.error === null);

// An order is not sent twice, and an upload whose answer broke off has stopped and can go on.
const open = { id: 1, status: "open", path: "a.txt", size: 3, replace: false, received: [], chunk_bytes: 524288 };
answer = (method, url) => (method === "GET" ? said([]) : broken);
requests = [];
uploads.send("7", "", [new File(["abc"], "a.txt")]);
const [one] = uploads.sendings("7");
told.uploadStopped = await until(() => one.state === "stopped");
told.uploadMessage = one.error?.message;
told.orders = requests.filter((each) => each.startsWith("POST")).length;
answer = (method, url) => said(method === "GET" ? [] : open);
uploads.again(one);
told.uploadDone = await until(() => one.state === "done");

console.log(JSON.stringify(told));
