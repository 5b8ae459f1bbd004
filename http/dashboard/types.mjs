// The models of the API as TypeScript: reads the OpenAPI document from standard input, writes the file named.
import { compile } from "json-schema-to-typescript";
import { writeFile } from "node:fs/promises";
import { text } from "node:stream/consumers";

const out = process.argv[2];
if (!out) throw new Error("usage: node types.mjs OUTPUT_FILE < openapi.json");

const { components } = JSON.parse((await text(process.stdin)).replaceAll("#/components/schemas/", "#/$defs/"));

// A title would give every field a type of its own.
const untitled = (value) => {
  if (Array.isArray(value)) return value.map(untitled);
  if (value === null || typeof value !== "object") return value;
  const kept = Object.entries(value).filter(([key, item]) => key !== "title" || typeof item !== "string");
  return Object.fromEntries(kept.map(([key, item]) => [key, untitled(item)]));
};

const types = await compile({ $defs: untitled(components.schemas) }, "Models", {
  additionalProperties: false,
  bannerComment: "/** The API's models. Generated from its OpenAPI document: change the model in Python. */",
  unreachableDefinitions: true,
});
await writeFile(out, types);
