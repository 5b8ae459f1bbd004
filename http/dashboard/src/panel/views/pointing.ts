/** Where the names of a site lead, and which records lead them to this server. */
import { html, nothing, type TemplateResult } from "lit-html";
import { inLetters } from "../../shared/idn";
import { badge, named, type Fragment } from "../../shared/ui";
import type { NamePoints, SitePointing } from "../model";

const TONES: Record<NamePoints["state"], string> = {
  here: "ok",
  partly: "differs",
  elsewhere: "missing",
  nowhere: "missing",
  unknown: "unknown",
};

export function leads({ state, text }: NamePoints): TemplateResult {
  return html`${badge(TONES[state], null)} <span class="quiet">${text}</span>`;
}

/** The facts of a site, or of a zone, about where to point its names. */
export function pointingFacts({ addresses, names }: SitePointing): [string, Fragment][] {
  return [
    ["Names", html`${names.map((each) => html`<div>${named(each.name, "both")} ${leads(each)}</div>`)}`],
    [
      "Point them to",
      addresses.length
        ? html`${addresses.map((each) => html`<div class="mono">${each.includes(":") ? "AAAA" : "A"} ${each}</div>`)}`
        : "not known: an administrator sets the addresses of this server",
    ],
  ];
}

export function pointingAdvice({ advice }: SitePointing): Fragment {
  return advice ? html`<p class="advice">${inLetters(advice)}</p>` : nothing;
}
