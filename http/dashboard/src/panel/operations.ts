/** The panel's operations as its registry describes them, and how one is called with what a form has. */
import { api, type Parameters } from "../shared/api";
import described from "./operations.json";

export type OperationName = keyof typeof described;

/** JSON Schema, as far as the registry uses it. */
export interface Schema {
  type?: "string" | "integer" | "number" | "boolean" | "array" | "object" | "null";
  description?: string;
  default?: unknown;
  const?: unknown;
  enum?: (string | number)[];
  minimum?: number;
  maximum?: number;
  maxLength?: number;
  format?: string;
  items?: Schema;
  anyOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
  /** One of several shapes, told apart by the value of one member. */
  oneOf?: Schema[];
  discriminator?: { propertyName: string };
}

export interface OperationField {
  name: string;
  place: "path" | "query" | "body";
  required: boolean;
  schema: Schema;
}

export interface Operation {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  path: string;
  summary: string;
  /** Who may ask for it: `public`, `signed_in`, `administrator`. */
  role: string;
  fields: OperationField[];
}

export const OPERATIONS = described as unknown as Record<OperationName, Operation>;

/** Call it; `values` are by the fields' names, wherever a request carries them. */
export function perform<T>(name: OperationName, values: Record<string, unknown> = {}): Promise<T> {
  const { method, path, fields } = OPERATIONS[name];
  const at = (place: OperationField["place"]) =>
    Object.fromEntries(
      fields.filter((field) => field.place === place && values[field.name] !== undefined).map((field) => [field.name, values[field.name]]),
    );
  const inPath = at("path");
  const target = path.replaceAll(/\{(\w+)\}/g, (_, field: string) => encodeURIComponent(String(inPath[field])));
  if (method === "GET") return api.get<T>(target, at("query") as Parameters);
  const body = at("body");
  const bodies = fields.some((field) => field.place === "body");
  switch (method) {
    case "POST":
      return api.post<T>(target, bodies ? body : undefined);
    case "PUT":
      return api.put<T>(target, body);
    case "PATCH":
      return api.patch<T>(target, body);
    case "DELETE":
      return api.delete<T>(target, bodies ? body : undefined);
  }
}
