/** What a site can be, as it is offered when one is made: a line each. `fields` are those of `site.create` that only
 * this type has; `tabs` are the places of the site's page that only this type has. */
import type { SiteType } from "./model";

export interface SiteTypeChoice {
  type: SiteType;
  label: string;
  text: string;
  fields?: readonly string[];
}

export const SITE_TYPES: SiteTypeChoice[] = [
  { type: "static", label: "Static files", text: "Serves the files that you upload." },
  { type: "proxy", label: "Proxy", text: "Passes visitors on to a server of yours.", fields: ["proxy_target"] },
];

export function typeLabel(type: SiteType): string {
  return SITE_TYPES.find((each) => each.type === type)?.label ?? type;
}
