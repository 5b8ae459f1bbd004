// What the pages know of the APIs, from the services' OpenAPI documents: reads {"controller": ..., "panel": ...} from
// standard input and writes, below the folder named, each service's models as TypeScript, those that both have for what
// they share, and the panel's operations for the forms that are made from them.
import { compile } from "json-schema-to-typescript";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { text } from "node:stream/consumers";

const out = process.argv[2];
if (!out) throw new Error("usage: node types.mjs SOURCE_FOLDER < documents.json");

const documents = JSON.parse(await text(process.stdin));
const controller = documents.controller.components.schemas;
const panel = documents.panel.components.schemas;

const REFERENCE = "#/components/schemas/";
const referred = (value) => [...JSON.stringify(value).matchAll(/"#\/components\/schemas\/(\w+)"/g)].map(([, name]) => name);

/** The models that are the same in both, with all that they refer to. */
function common() {
  const same = new Set(Object.keys(panel).filter((name) => JSON.stringify(panel[name]) === JSON.stringify(controller[name])));
  for (let left = -1; left !== same.size;) {
    left = same.size;
    for (const name of same) if (!referred(panel[name]).every((other) => same.has(other))) same.delete(name);
  }
  return Object.fromEntries([...same].map((name) => [name, panel[name]]));
}

// A title would give every field a type of its own.
const untitled = (value) => {
  if (Array.isArray(value)) return value.map(untitled);
  if (value === null || typeof value !== "object") return value;
  const kept = Object.entries(value).filter(([key, item]) => key !== "title" || typeof item !== "string");
  return Object.fromEntries(kept.map(([key, item]) => [key, untitled(item)]));
};

async function models(schemas, folder) {
  const local = JSON.parse(JSON.stringify(schemas).replaceAll(REFERENCE, "#/$defs/"));
  const types = await compile({ $defs: untitled(local) }, "Models", {
    additionalProperties: false,
    bannerComment: "/** The API's models. Generated from its OpenAPI document: change the model in Python. */",
    unreachableDefinitions: true,
  });
  await writeFile(join(out, folder, "generated.ts"), types);
}

/** What the service judges, and forms do not: it would be the most of what a browser has to fetch. */
const JUDGED = new Set(["pattern", "minLength", "title", "additionalProperties"]);

/** A schema with what it refers to in its place; what refers to itself is left a reference. */
function whole(schema, within = []) {
  if (Array.isArray(schema)) return schema.map((item) => whole(item, within));
  if (schema === null || typeof schema !== "object") return schema;
  const name = schema.$ref?.startsWith(REFERENCE) ? schema.$ref.slice(REFERENCE.length) : undefined;
  if (name && !within.includes(name)) {
    const { $ref, ...rest } = schema;
    return { ...whole(panel[name], [...within, name]), ...rest };
  }
  const kept = Object.entries(schema).filter(([key, item]) => !JUDGED.has(key) || typeof item === "object");
  return Object.fromEntries(kept.map(([key, item]) => [key, whole(item, within)]));
}

/** Every operation with its fields, wherever a request carries them. */
function operations() {
  const found = {};
  for (const [path, methods] of Object.entries(documents.panel.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const body = operation.requestBody?.content["application/json"]?.schema;
      const fields = (operation.parameters ?? []).map((parameter) => ({
        name: parameter.name,
        place: parameter.in,
        required: parameter.required,
        schema: { description: parameter.description, ...whole(parameter.schema) },
      }));
      for (const [name, schema] of Object.entries(body?.properties ?? {})) {
        fields.push({ name, place: "body", required: (body.required ?? []).includes(name), schema: whole(schema) });
      }
      found[operation.operationId] = {
        method: method.toUpperCase(),
        path,
        summary: operation.summary,
        role: operation["x-role"],
        fields,
      };
    }
  }
  return found;
}

await models(common(), "shared");
await models(controller, "controller");
await models(panel, "panel");
await writeFile(join(out, "panel", "operations.json"), JSON.stringify(operations()));
