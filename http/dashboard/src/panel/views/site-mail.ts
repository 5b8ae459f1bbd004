/** Mail that programs of a site send: whether it is sent, how much of it, what receivers think of it, and each mail. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { pager } from "../../shared/list";
import { changed } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { badge, bytes, count, facts, note, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { DkimRotated, MailDomain, MailOfSite, Site, SiteMail } from "../model";
import type { Viewer } from "../rights";
import type { SitePart } from "./site";

const STATES: MailOfSite["state"][] = ["queued", "sent", "failed"];

export function siteMail(site: Site, viewer: Viewer): SitePart {
  let state = "";
  let page = 1;
  const mail = new Resource<SiteMail>((signal) => api.get(`/sites/${site.id}/mail`, {}, signal), ["site"]);
  const mails = new Resource<Page<MailOfSite>>(
    (signal) => api.get(`/sites/${site.id}/mails`, { state, page: String(page) }, signal),
    ["site"],
  );
  const look = (at: number, of: string) => {
    page = at;
    state = of;
    void mails.load();
    changed();
  };
  return {
    draw: (now) => html`
      ${shown(mail, (found) => html`${summary(now, found, viewer)}${scripts(found)}${domains(now, found, viewer)}`)}
      ${
        viewer.may("site.mails")
          ? html`
      <div class="head"><h2>Mails</h2>
        <select aria-label="State" @change=${(event: Event) => look(1, (event.target as HTMLSelectElement).value)}>
          <option value="">State: any</option>${STATES.map((each) => html`<option ?selected=${each === state}>${each}</option>`)}</select>
        <span class="gap"></span>
        ${mail.value?.queued && viewer.may("site.cancel_mails") ? html`<button class="danger" @click=${() => cancel(now)}>Cancel waiting mails</button>` : nothing}</div>
      ${shown(mails, (found) => html`${list(found.items, viewer, now)}${pager(found, (number) => look(number, state))}`)}`
          : nothing
      }`,
    dispose: () => {
      mail.dispose();
      mails.dispose();
    },
  };
}

const SOURCES: Record<SiteMail["hour"]["source"], string> = {
  site: "set for this site",
  plan: "the plan's limit",
  server: "the server's limit",
};

function summary(site: Site, mail: SiteMail, { may }: Viewer): TemplateResult {
  const limit = ({ limit: most, sent, source }: SiteMail["hour"]) =>
    html`${sent.toLocaleString()} of ${most.toLocaleString()} <span class="quiet">${SOURCES[source]}</span>`;
  return html`<div class="head"><h2>Mail</h2><span class="gap"></span>
      ${mail.held && may("site.release_mail") ? html`<button class="primary" @click=${() => release(site)}>Release</button>` : nothing}
      ${may("site.update_mail") ? html`<button @click=${() => change(site, mail)}>Change limits</button>` : nothing}</div>
    ${mail.problem ? html`<p class="failure">${mail.problem}</p>` : nothing}
    ${facts([
      ["State", mail.held ? badge("held") : mail.problem ? badge("refused") : badge("ok")],
      ...(mail.held
        ? ([
            ["Held", html`${when(mail.held.since)}${mail.held.until ? html`, until ${when(mail.held.until)}` : ", until it is released"}`],
          ] as [string, TemplateResult][])
        : []),
      ["Sent in the last hour", limit(mail.hour)],
      ["Sent in the last day", limit(mail.day)],
      ["Waiting for delivery", mail.queued.toLocaleString()],
    ])}`;
}

function scripts({ scripts: all }: SiteMail): TemplateResult {
  if (!all.length) return html``;
  return html`<h2>Programs that sent most in the last 24 hours</h2>${table(
    ["Program", "Mails"],
    all.map(
      (each) =>
        html`<tr><td class="mono value">${each.script ?? html`<span class="quiet">unknown</span>`}</td><td>${each.mails.toLocaleString()}</td></tr>`,
    ),
    "",
  )}`;
}

function domains(site: Site, { domains: all }: SiteMail, { may }: Viewer): TemplateResult {
  return html`<h2>What receivers check</h2>
    ${table(
      ["Domain", "DKIM", "SPF", ""],
      all.map(
        (
          each,
        ) => html`<tr><td>${each.name}</td><td>${badge(each.dkim.state, each.dkim.advice)}</td><td>${badge(each.spf.state, each.spf.advice)}</td>
        <td class="act">${
          each.name === each.zone && each.dkim.record && may("dns.rotate_dkim")
            ? html`<button @click=${() => rotate(site, each)}>Replace key</button>`
            : nothing
        }</td></tr>`,
      ),
      "This site has no domain.",
    )}
    ${all.map((each) => html`${advice(each.name, each.spf.advice, each.name, each.spf.state === "missing" ? each.spf.text : null)}`)}
    ${zonesOf(all).map((each) => advice(each.zone, each.dkim.advice, each.dkim.record, each.dkim.state === "missing" ? each.dkim.text : null))}`;
}

/** One domain of each zone: they have the zone's DKIM in common. */
function zonesOf(all: MailDomain[]): MailDomain[] {
  return all.filter((each, at) => all.findIndex(({ zone }) => zone === each.zone) === at);
}

function advice(of: string, text: string | null, name: string | null, record: string | null): TemplateResult | typeof nothing {
  if (!text) return nothing;
  return html`<p class="advice"><b>${of}</b>: ${text}
    ${record ? html`<br><span class="mono value">${name} TXT ${record}</span>` : nothing}</p>`;
}

function list(mails: MailOfSite[], { may }: Viewer, site: Site): TemplateResult {
  return table(
    ["Accepted", "To", "Program", "Size", "State", "Attempts", ""],
    mails.map(
      (mail) => html`<tr><td>${when(mail.accepted_at)}</td><td class="value" title=${`From ${mail.sender}`}>${mail.recipient}</td>
      <td class="mono value">${mail.script ?? "—"}</td><td>${bytes(mail.bytes)}</td>
      <td>${badge(mail.state)}${mail.error ? html`<div class="quiet value">${mail.error}</div>` : nothing}</td>
      <td>${mail.attempts}${mail.next_attempt_at && mail.attempts ? html`<div class="quiet">next ${when(mail.next_attempt_at)}</div>` : nothing}</td>
      <td class="act">${mail.state === "queued" && may("site.retry_mail") ? html`<button @click=${() => retry(site, mail)}>Send now</button>` : nothing}</td></tr>`,
    ),
    "No mails. What programs of the site send is listed here, one line for each recipient.",
  );
}

function release(site: Site): void {
  order("site.release_mail", {
    title: `Release the mail of ${site.domain}?`,
    text: "Its mail is accepted again, and counted anew. Look at the programs that sent most first: a hacked one goes on sending.",
    action: "Release",
    known: { id: site.id },
    done: () => note(`The mail of ${site.domain} is accepted again.`),
  });
}

function change(site: Site, mail: SiteMail): void {
  const own = (limit: SiteMail["hour"]) => (limit.source === "site" ? limit.limit : null);
  order("site.update_mail", {
    title: `Mail of ${site.domain}`,
    text: "Counted by recipient. Empty: as the owner's plan or the server's settings say. 0: no mail.",
    action: "Save",
    known: { id: site.id },
    initial: { enabled: mail.enabled, mails_per_hour: own(mail.hour), mails_per_day: own(mail.day) },
    fields: ["enabled", "mails_per_hour", "mails_per_day"],
    wishes: {
      enabled: { label: "Send mail" },
      mails_per_hour: { label: "Mails an hour" },
      mails_per_day: { label: "Mails a day" },
    },
  });
}

function retry(site: Site, mail: MailOfSite): void {
  order("site.retry_mail", {
    title: `Send the mail to ${mail.recipient} now?`,
    action: "Send now",
    known: { id: site.id, mail_id: mail.id },
    done: () => note("It is sent now."),
  });
}

function cancel(site: Site): void {
  order<{ cancelled: number }>("site.cancel_mails", {
    title: `Cancel the waiting mails of ${site.domain}?`,
    text: "They are not sent, and their messages are deleted.",
    action: "Cancel mails",
    dangerous: true,
    known: { id: site.id },
    done: ({ cancelled }) => note(`Cancelled: ${count(cancelled, "mail")}.`),
  });
}

function rotate(site: Site, { zone }: MailDomain): void {
  order<DkimRotated>("dns.rotate_dkim", {
    title: `Replace the key that signs mail of ${zone}?`,
    text: "New mail is signed with a new key. The present one stays published for a week, for mail on its way.",
    action: "Replace key",
    known: { id: site.id, zone },
    done: ({ record, text }) => html`<p>Mail of ${zone} is signed with a new key.</p><p class="mono value">${record} TXT ${text}</p>`,
  });
}
