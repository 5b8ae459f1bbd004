/** What a site can be, as it is offered when one is made: a line each. */
import type { SiteType } from "./model";

/** `fields` are those of `site.create` that this type asks for. */
export interface SiteTypeChoice {
  type: SiteType;
  label: string;
  text: string;
  fields?: readonly string[];
}

export const SITE_TYPES: SiteTypeChoice[] = [
  { type: "static", label: "Static files", text: "Serves the files that you upload." },
  { type: "php", label: "PHP", text: "Runs the PHP that you upload.", fields: ["php_version"] },
  {
    type: "wordpress",
    label: "WordPress",
    text: "Has WordPress installed, with a database of its own.",
    fields: ["title", "language"],
  },
  {
    type: "app",
    label: "Application",
    text: "Runs a program in Python or node that you upload.",
    fields: ["runtime", "entry", "interface", "folder", "health_path"],
  },
  { type: "proxy", label: "Proxy", text: "Passes visitors on to a server of yours.", fields: ["proxy_target"] },
];

export function typeLabel(type: SiteType): string {
  return SITE_TYPES.find((each) => each.type === type)?.label ?? type;
}
