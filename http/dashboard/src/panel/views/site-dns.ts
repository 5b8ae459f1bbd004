/** The zone of a site: its records, and whether it is delegated to this server. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { inLetters } from "../../shared/idn";
import { changed } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, facts, named, shown, table } from "../../shared/ui";
import { order } from "../form";
import type { DnsChange, DnsPoint, DnsRecord, Site, SiteDns } from "../model";
import type { Viewer } from "../rights";
import { pointingAdvice, pointingFacts } from "./pointing";
import type { SitePart } from "./site";

export function siteDns(site: Site, viewer: Viewer): SitePart {
  let zone = "";
  const dns = new Resource<SiteDns>((signal) => api.get(`/sites/${site.id}/dns`, { zone }, signal), ["site"]);
  const choose = (event: Event) => {
    zone = (event.target as HTMLSelectElement).value;
    dns.value = null;
    void dns.load();
    changed();
  };
  return {
    draw: (now) =>
      html`${shown(
        dns,
        (found) => html`
      <div class="head"><h2>Zone ${named(found.zone.name, "both")}</h2>
        ${
          found.zones.length > 1
            ? html`<select aria-label="Zone" @change=${choose}>${found.zones.map((each) => html`<option value=${each} ?selected=${each === found.zone.name}>${inLetters(each)}</option>`)}</select>`
            : nothing
        }
        <span class="gap"></span>
        ${viewer.may("dns.point") ? html`<button @click=${() => point(now)}>Point here</button>` : nothing}
        ${viewer.may("dns.create") ? html`<button class="primary" @click=${() => add(now, found)}>Create record</button>` : nothing}</div>
      ${facts(pointingFacts(found.pointing))}
      ${pointingAdvice(found.pointing)}
      ${delegation(found)}
      ${records(now, found, viewer)}`,
      )}`,
    dispose: () => dns.dispose(),
  };
}

const DELEGATIONS: Record<SiteDns["delegation"]["state"], [string, string]> = {
  here: ["ok", "This zone is delegated to this server."],
  partly: ["differs", "This zone is delegated to this server and to others."],
  elsewhere: ["missing", "This zone is delegated elsewhere: these records are not visible yet."],
  nowhere: ["missing", "This zone is not delegated yet."],
  unknown: ["unknown", "The parent's name servers did not answer."],
};

function delegation({ zone, delegation: { state, nameservers, expected, advice, problem } }: SiteDns): TemplateResult {
  const [tone, text] = DELEGATIONS[state];
  return html`${facts([
    ["Delegation", html`${badge(tone)} ${text}`],
    ["Name servers now", nameservers.length ? html`${nameservers.map((each) => html`<div class="mono">${each}</div>`)}` : "—"],
    ["Those of this server", html`${expected.map((each) => html`<div class="mono">${each}</div>`)}`],
    ["Served", zone.served ? html`${badge("ok")} serial ${zone.serial}` : zone.exists ? badge("waiting") : "no records yet"],
  ])}
  ${state !== "here" && (advice || problem) ? html`<p class="advice">${advice} ${problem ? html`<span class="quiet">${problem}</span>` : nothing}</p>` : nothing}
  ${zone.warning ? html`<p class="advice">${zone.warning}</p>` : nothing}
  ${zone.problem ? html`<p class="failure">${zone.problem}</p>` : nothing}`;
}

function records(site: Site, { records: all, zone }: SiteDns, { may }: Viewer): TemplateResult {
  return table(
    ["Name", "Type", "Value", "TTL", ""],
    all.map(
      (record) => html`<tr><td class="mono">${short(record.name, zone.name)}</td><td>${record.type}</td>
      <td class="mono value">${valueOf(record)}</td><td>${record.ttl} s</td>
      <td class="act">${
        record.managed
          ? html`<span class="quiet" title="It is removed when it is no longer needed">the panel's own</span>`
          : html`${may("dns.update") ? html`<button @click=${() => change(site, record)}>Change</button>` : nothing}
            ${may("dns.delete") ? html`<button class="danger" @click=${() => remove(site, record)}>Delete</button>` : nothing}`
      }</td></tr>`,
    ),
    "No records yet. Point the site here to add the addresses of this server, or create records one by one.",
  );
}

/** `www` of `www.example.org`, `@` of the zone itself. */
function short(name: string, zone: string): string {
  const bare = name.replace(/\.$/, "");
  const apex = zone.replace(/\.$/, "");
  return bare === apex ? "@" : bare.endsWith(`.${apex}`) ? bare.slice(0, -apex.length - 1) : bare;
}

function valueOf({ data }: DnsRecord): string {
  return Object.entries(data)
    .filter(([name]) => name !== "type")
    .map(([, value]) => String(value))
    .join(" ");
}

const WISHES = {
  name: { label: "Name", hint: "@ is the zone itself; www is in the zone" },
  ttl: { label: "TTL, in seconds", hint: "Of all records of the name and type" },
  "data.type": { label: "Type" },
};

function add(site: Site, { zone }: SiteDns): void {
  order<DnsChange>("dns.create", {
    title: `Create a record in ${zone.name}`,
    action: "Create",
    known: { id: site.id, zone: zone.name },
    fields: ["name", "data", "ttl"],
    wishes: WISHES,
    done: hinted,
  });
}

function change(site: Site, record: DnsRecord): void {
  order<DnsChange>("dns.update", {
    title: `Change ${record.type} of ${record.name}`,
    action: "Save",
    known: { id: site.id, record_id: record.id },
    initial: { name: record.name, ttl: record.ttl, data: record.data },
    fields: ["name", "data", "ttl"],
    wishes: { ...WISHES, "data.type": { label: "Type", value: record.type, options: [{ value: record.type, label: record.type }] } },
    done: hinted,
  });
}

/** A name that may be meant as another than it was taken for. */
function hinted({ hint }: DnsChange): TemplateResult | undefined {
  return hint ? html`<p class="advice">${inLetters(hint)}</p>` : undefined;
}

function remove(site: Site, record: DnsRecord): void {
  order("dns.delete", {
    title: `Delete ${record.type} of ${record.name}?`,
    text: html`<span class="mono">${valueOf(record)}</span>`,
    action: "Delete",
    dangerous: true,
    known: { id: site.id, record_id: record.id },
  });
}

function point(site: Site): void {
  order<DnsPoint>("dns.point", {
    title: `Point ${site.domain} here?`,
    text: "The address records of its domains are replaced by the addresses of this server.",
    action: "Point here",
    known: { id: site.id },
    done: pointed,
  });
}

function pointed({ addresses, names, zones, effective }: DnsPoint): TemplateResult {
  return html`<p>${effective ? badge("ok", "Publicly visible") : badge("waiting")} ${inLetters(names.map(({ name }) => name).join(", "))} → ${addresses.join(", ")}</p>
    ${names.flatMap(({ replaced }) => replaced).map((each) => html`<p class="quiet">Replaced: <span class="mono">${each}</span></p>`)}
    ${zones.map(({ delegation }) => (delegation.advice ? html`<p class="advice">${delegation.advice}</p>` : nothing))}`;
}
