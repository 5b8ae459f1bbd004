/** Members of an account or site, and the caller's own memberships. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { list } from "../../shared/list";
import type { Part, View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Me, Member, Membership, Site } from "../model";
import { accountUse } from "./account";
import { rows } from "./rows";
import type { SitePart } from "./site";

const HEADS = ["Email", "Name", "Role", "For", "Invited", ""];
const ROLES = [
  ["viewer", "looks at everything but files and databases"],
  ["editor", "files"],
  ["developer", "files, databases, applications, PHP, scheduled tasks"],
  ["manager", "everything of the sites"],
];
const BILLING = ["billing", "the plan and what is used of it; no sites"];

/** The customer's own account. */
export function membersView(me: Me): View {
  return list<Member>({
    title: "Members",
    path: "/members",
    kinds: ["person"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${() => invite("your account", {}, [...ROLES, BILLING])}>Invite member</button>`,
    before: () => html`<p class="quiet">They work in your account, ${me.email}, as far as their role allows. What they make is yours.</p>`,
    rows: (members) => table(HEADS, members.map(row), "Nobody but you."),
  });
}

/** Those of one customer, for administrators. */
export function accountMembers(id: string): Part {
  const members = new Resource<Page<Member>>((signal) => api.get("/members", { account: id, page_size: 200 }, signal), ["person"]);
  return {
    draw: () => html`<div class="head"><h2>Members</h2><span class="gap"></span>
        <button @click=${() => invite("the account", { account_id: id }, [...ROLES, BILLING])}>Invite member</button></div>
      ${shown(members, (page) => table(HEADS, page.items.map(row), "Nobody besides the customer."))}`,
    dispose: () => members.dispose(),
  };
}

/** Those who may work in a site, by the whole account or by it alone. */
export function siteMembers(site: Site): SitePart {
  return rows<Member>({
    title: "Members",
    text: `They may work in this site, as far as their role allows. It still belongs to ${site.owner_email}.`,
    path: `/members?site=${site.id}`,
    heads: HEADS,
    buttons: (now) => html`<button class="primary" @click=${() => invite(now.domain, { site_id: now.id }, ROLES)}>Invite member</button>`,
    row,
    empty: "Nobody but the owner.",
  });
}

function row(member: Member): TemplateResult {
  return html`<tr><td>${member.email} ${member.status === "active" ? nothing : badge(member.status)}</td><td>${member.name ?? "—"}</td>
    <td>${member.role}</td><td>${member.domain ?? "the whole account"}</td><td>${when(member.created_at)}</td>
    <td class="act"><button @click=${() => changeRole(member)}>Change role</button>
      <button class="danger" @click=${() => remove(member)}>Remove</button></td></tr>`;
}

function roleChoice(roles: string[][], value = "") {
  return {
    label: "Role",
    kind: "select" as const,
    value,
    options: roles.map(([role = "", may]) => ({ value: role, label: `${role}: ${may}` })),
  };
}

function invite(where: string, known: Record<string, string>, roles: string[][]): void {
  order("member.invite", {
    title: `Invite a member to ${where}`,
    text: "They are mailed, and may do nothing before they have accepted.",
    action: "Invite",
    known,
    fields: ["email", "role"],
    wishes: { role: roleChoice(roles) },
  });
}

function changeRole(member: Member): void {
  order("member.update", {
    title: `Change the role of ${member.email}`,
    text: "It takes effect at once, in every browser and for every token of theirs.",
    action: "Change",
    known: { id: member.id },
    wishes: { role: roleChoice(member.site_id ? ROLES : [...ROLES, BILLING], member.role) },
  });
}

function remove(member: Member): void {
  order("member.remove", {
    title: `Remove ${member.email}?`,
    text: "They lose access at once. Logins for SFTP and users of databases are the site's and stay: change those whose passwords they knew.",
    action: "Remove",
    dangerous: true,
    known: { id: member.id },
  });
}

/** What the caller was invited to. */
export function membershipsView(): View {
  const memberships = new Resource<Page<Membership>>((signal) => api.get("/memberships", { page_size: 200 }, signal), ["person"]);
  const plans = new Map<string, Part>();
  const planOf = (id: string) => {
    const part = plans.get(id) ?? accountUse(id, () => html`${nothing}`);
    plans.set(id, part);
    return part;
  };
  return {
    title: "Memberships",
    draw: () => html`<div class="head"><h1>Memberships</h1></div>
      ${shown(
        memberships,
        (
          page,
        ) => html`${table(["Account", "For", "Your role", "Invited by", ""], page.items.map(own), "You are a member of nobody's account.")}
        ${page.items
          .filter((each) => each.role === "billing" && each.status === "active" && !each.suspended)
          .map((each) => html`<h2>${each.account_email}</h2>${planOf(each.account_id).draw()}`)}`,
      )}`,
    dispose: () => {
      memberships.dispose();
      for (const plan of plans.values()) plan.dispose?.();
    },
  };
}

function own(membership: Membership): TemplateResult {
  const leave = () =>
    order("member.remove", {
      title: membership.status === "invited" ? "Decline the invitation?" : `Leave ${membership.account_email}?`,
      text: "To come back you have to be invited again.",
      action: membership.status === "invited" ? "Decline" : "Leave",
      dangerous: true,
      known: { id: membership.id },
    });
  return html`<tr><td>${membership.account_email} ${membership.suspended ? badge("suspended") : nothing}</td>
    <td>${membership.domain ?? "all sites"}</td><td>${membership.role}</td><td>${membership.invited_by}</td>
    <td class="act">${
      membership.status === "invited"
        ? html`<button class="primary" @click=${() => void attempt(() => api.post(`/members/${membership.id}/accept`), "You are a member now.")}>Accept</button>
          <button class="danger" @click=${leave}>Decline</button>`
        : html`<button class="danger" @click=${leave}>Leave</button>`
    }</td></tr>`;
}
