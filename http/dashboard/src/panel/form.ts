/**
 * Forms made from an operation's schema: what a field is called, how it is typed, what it may be. A view says which
 * operation, what is known already and which fields it asks for; the rest follows from the registry.
 */
import { ApiError, type Page } from "../shared/api";
import { inLetters } from "../shared/idn";
import type { Field, Fragment, Values } from "../shared/ui";
import { ask } from "../shared/ui";
import type { Site } from "./model";
import { OPERATIONS, perform, type OperationField, type OperationName, type Schema } from "./operations";

/** A field as a view wants it, where that differs from what the schema makes of it. */
export type Wish = Partial<Omit<Field, "name">>;

/** A site's id as the choice of one; typed, where these are not all of them. */
export function siteChoice(sites: Page<Site> | null): Wish {
  if (!sites || sites.total > sites.items.length) return {};
  return { label: "Site", kind: "select", options: sites.items.map(({ id, domain }) => ({ value: id, label: inLetters(domain) })) };
}

export interface Order<T> {
  title: string;
  /** What is known: the site of the page, for instance. It is sent, and not asked for. */
  known?: Record<string, unknown>;
  /** Initial values of the fields: the present ones, where something is changed. */
  initial?: object;
  /** The fields that are asked for, in their order; all that are not known, without it. */
  fields?: readonly string[] | ((values: Values) => readonly string[]);
  wishes?: Record<string, Wish>;
  text?: Fragment;
  action: string;
  dangerous?: boolean;
  /** Offered only once this has been typed; `typedAs` sends it as that field as well. */
  typed?: string;
  typedAs?: string;
  wide?: boolean;
  /** What is shown in place of the form, if something is: a secret that is shown once, for instance. */
  done?: (answer: T) => Fragment | void | Promise<Fragment | void>;
}

/** Ask for what the operation needs, in a dialog, and perform it. A refusal is shown there, with what to do about it. */
export function order<T = unknown>(name: OperationName, wanted: Order<T>): void {
  const { fields: all } = OPERATIONS[name];
  const { known = {}, wishes = {} } = wanted;
  const initial = flattened({ ...wanted.initial });
  const open = all.filter((field) => !(field.name in known) && field.name !== wanted.typedAs && !isOtherNameOfPath(field, all));
  const asked = (values: Values) => {
    const names = typeof wanted.fields === "function" ? wanted.fields(values) : (wanted.fields ?? open.map((field) => field.name));
    return names.flatMap((each) => open.filter((field) => field.name === each)).flatMap((field) => opened(field, values, initial));
  };
  ask({
    title: inLetters(wanted.title),
    ...(wanted.text === undefined ? {} : { text: typeof wanted.text === "string" ? inLetters(wanted.text) : wanted.text }),
    action: wanted.action,
    dangerous: wanted.dangerous ?? false,
    wide: wanted.wide ?? false,
    ...(wanted.typed === undefined ? {} : { typed: inLetters(wanted.typed) }),
    fields: (values) => asked(values).map((field) => fieldOf(field, initial[field.name], wishes[field.name])),
    submit: async (values) => {
      const given = { ...known, ...nested(valuesOf(asked(values), values, initial)) };
      if (wanted.typedAs) given[wanted.typedAs] = wanted.typed;
      const answer = await perform<T>(name, given);
      return await wanted.done?.(answer);
    },
  });
}

/**
 * A field that holds fields is asked for by those, as `data.address`: where it is one of several shapes, by the choice of
 * one (`data.type`) and the fields of what is chosen.
 */
export function opened(field: OperationField, values: Values, initial: Record<string, unknown>): OperationField[] {
  const { schema, nullable } = plain(field.schema);
  const choice = schema.discriminator?.propertyName;
  const part = (name: string, inner: Schema, required: boolean): OperationField => ({
    ...field,
    name: `${field.name}.${name}`,
    required,
    schema: inner,
  });
  const members = (shape: Schema, without?: string) =>
    Object.entries(shape.properties ?? {})
      .filter(([name]) => name !== without)
      .map(([name, inner]) => part(name, inner, !nullable && (shape.required ?? []).includes(name)));
  if (schema.oneOf && choice) {
    const shapes = new Map(schema.oneOf.map((shape) => [String(shape.properties?.[choice]?.const), shape]));
    const name = `${field.name}.${choice}`;
    const chosen = values[name] ?? String(initial[name] ?? [...shapes.keys()][0]);
    const shape = shapes.get(chosen);
    const which: Schema = { type: "string", enum: [...shapes.keys()], ...(nullable ? {} : { default: chosen }) };
    return [part(choice, which, !nullable), ...(shape ? members(shape, choice) : [])];
  }
  return schema.type === "object" && schema.properties ? members(schema) : [field];
}

/** `{data: {type: "A"}}` also as `{"data.type": "A"}`; values that are no objects stay as they are. */
function flattened(values: object): Record<string, unknown> {
  const flat: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(values)) {
    flat[name] = value;
    if (value === null || typeof value !== "object" || Array.isArray(value)) continue;
    for (const [inner, each] of Object.entries(value)) flat[`${name}.${inner}`] = each;
  }
  return flat;
}

/** The way back. */
export function nested(flat: Record<string, unknown>): Record<string, unknown> {
  const values: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(flat)) {
    const [outer = "", inner] = name.split(".");
    if (inner === undefined) values[outer] = value;
    else values[outer] = { ...(values[outer] as object | undefined), [inner]: value };
  }
  return values;
}

/** A body may name the site again. The path's counts, so the form has that field once. */
export function isOtherNameOfPath(field: OperationField, all: OperationField[]): boolean {
  return field.place === "body" && (field.name === "site_id" || field.name === "id") && all.some((other) => other.place === "path");
}

/** The schema without the choice of nothing, and whether there was one. */
export function plain(schema: Schema): { schema: Schema; nullable: boolean } {
  const choices = schema.anyOf?.filter((choice) => choice.type !== "null");
  if (!schema.anyOf || !choices) return { schema, nullable: false };
  const { anyOf, ...rest } = schema;
  const [only, ...others] = choices;
  const nullable = choices.length < anyOf.length;
  return others.length || !only ? { schema: { ...rest, anyOf: choices }, nullable } : { schema: { ...only, ...rest }, nullable };
}

type Kind = "boolean" | "choice" | "choices" | "lines" | "number" | "json" | "text";

function kindOf(schema: Schema): Kind {
  if (schema.enum) return "choice";
  switch (schema.type) {
    case "boolean":
      return "boolean";
    case "integer":
    case "number":
      return "number";
    case "array":
      return schema.items?.enum ? "choices" : schema.items?.type === "string" || schema.items?.anyOf ? "lines" : "json";
    case "string":
      return "text";
    default:
      return schema.const !== undefined || schema.anyOf?.some((choice) => choice.type === "string") ? "text" : "json";
  }
}

/** `owner_email` is read as "Owner email". */
export function spoken(name: string): string {
  const text = name.slice(name.indexOf(".") + 1).replaceAll("_", " ");
  return text.charAt(0).toUpperCase() + text.slice(1);
}

const LONG_TEXT = 1000;
const HIDDEN = /(^|_)(password|passphrase|secret)$/;

export function fieldOf(field: OperationField, initial: unknown, wish: Wish = {}): Field {
  const { schema, nullable } = plain(field.schema);
  const optional = !field.required;
  const preset = initial ?? schema.const ?? schema.default;
  const value = preset === undefined || preset === null ? "" : String(preset);
  const made: Field = {
    name: field.name,
    label: spoken(field.name),
    required: !optional,
    ...(schema.description ? { hint: schema.description } : {}),
  };
  switch (kindOf(schema)) {
    case "boolean":
      if (nullable || preset === undefined || preset === null) {
        Object.assign(made, { kind: "select", value, options: [{ value: "", label: "as it is" }, YES, NO] });
        if (!optional) made.options = [YES, NO];
      } else Object.assign(made, { kind: "checkbox", value: preset ? "on" : "" });
      break;
    case "choice": {
      const options = (schema.enum ?? []).map((each) => ({ value: String(each), label: String(each).replaceAll("_", " ") }));
      Object.assign(made, { kind: "select", value, options: optional && !value ? [{ value: "", label: "—" }, ...options] : options });
      break;
    }
    case "choices":
      Object.assign(made, {
        kind: "choices",
        values: Array.isArray(preset) ? preset.map(String) : [],
        options: (schema.items?.enum ?? []).map((each) => ({ value: String(each), label: String(each) })),
      });
      break;
    case "lines":
      Object.assign(made, { kind: "textarea", value: Array.isArray(preset) ? preset.join("\n") : "" });
      made.hint = [made.hint, "one a line"].filter(Boolean).join("; ");
      break;
    case "number":
      Object.assign(made, { kind: "number", value });
      if (schema.minimum !== undefined) made.least = schema.minimum;
      if (schema.maximum !== undefined) made.most = schema.maximum;
      break;
    case "json":
      Object.assign(made, { kind: "textarea", value: preset === undefined || preset === null ? "" : JSON.stringify(preset, null, 2) });
      made.hint = [made.hint, "as JSON"].filter(Boolean).join("; ");
      break;
    case "text":
      made.value = value;
      if (HIDDEN.test(field.name)) Object.assign(made, { kind: "password", autocomplete: "new-password" });
      else if (/(^|_)email$/.test(field.name)) made.kind = "email";
      else if ((schema.maxLength ?? 0) > LONG_TEXT && !/url|path|target/.test(field.name)) made.kind = "textarea";
  }
  return { ...made, ...wish };
}

const YES = { value: "true", label: "yes" };
const NO = { value: "false", label: "no" };

/**
 * What the form has, as the operation takes it. What was left empty is left out; a value that was there and was emptied is
 * taken away (null), where the operation allows that.
 */
export function valuesOf(fields: OperationField[], values: Values, initial: Record<string, unknown> = {}): Record<string, unknown> {
  const given: Record<string, unknown> = {};
  for (const field of fields) {
    const { schema, nullable } = plain(field.schema);
    const kind = kindOf(schema);
    const text = values[field.name] ?? "";
    const preset = initial[field.name] ?? schema.const ?? schema.default;
    if (kind === "boolean" && !nullable && preset !== undefined && preset !== null) given[field.name] = text === "on";
    else if (kind === "choices") given[field.name] = chosenOf(field.name, values);
    else if (text.trim()) given[field.name] = read(kind, schema, text, field.name);
    else if (kind === "lines" && (initial[field.name] as unknown[] | undefined)?.length) given[field.name] = [];
    else if (nullable && initial[field.name] !== undefined && initial[field.name] !== null) given[field.name] = null;
    else if (field.required && kind === "text") given[field.name] = text;
    if (kind === "choices" && !field.required && !(given[field.name] as string[]).length && !initial[field.name]) delete given[field.name];
  }
  return given;
}

function chosenOf(name: string, values: Values): string[] {
  return Object.keys(values)
    .filter((each) => each.startsWith(`${name}:`))
    .map((each) => each.slice(name.length + 1));
}

function read(kind: Kind, schema: Schema, text: string, name: string): unknown {
  switch (kind) {
    case "boolean":
      return text === "true" || text === "on";
    case "choice":
      return schema.enum?.find((each) => String(each) === text) ?? text;
    case "number":
      return Number(text);
    case "lines":
      return text
        .split("\n")
        .map((line) => line.trim())
        .filter(Boolean);
    case "json":
      return parsed(text, name);
    default:
      return HIDDEN.test(name) || (schema.maxLength ?? 0) > LONG_TEXT ? text : text.trim();
  }
}

function parsed(text: string, name: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(400, "invalid", `${spoken(name)} is not JSON; nothing was sent.`, 'Write it as {"name": "value"}.');
  }
}
