/** One person: what they may, what they have, and what an administrator can do for them. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, facts, note, secret, shown, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Job, Me, PersonDetail, Token } from "../model";
import { accountUse, changePlan, terminateAccount, unsuspterminateAccount, suspterminateAccount } from "./account";
import { accountMembers } from "./members";
import { PASSWORD_HINT } from "./people";

export function personView(me: Me, id: string): View {
  const person = new Resource<PersonDetail>((signal) => api.get(`/admin/users/${id}`, {}, signal), ["person", "activity"]);
  const tokens = new Resource<Page<Token>>((signal) => api.get("/tokens", { user: id, page_size: 200 }, signal), ["activity"]);
  const account = accountUse(
    id,
    (now) => html`<span class="actions">
    <button @click=${() => void attempt(() => changePlan(now))}>Change plan</button>
    ${now.status === "active" ? html`<button class="danger" @click=${() => suspterminateAccount(now)}>Suspend</button>` : html`<button @click=${() => unsuspterminateAccount(now)}>Unsuspend</button>`}
    <button class="danger" @click=${() => terminateAccount(now)}>Terminate account</button></span>`,
  );
  const members = accountMembers(id);
  return {
    get title() {
      return person.value?.email ?? "Person";
    },
    draw: () =>
      html`${shown(
        person,
        (now) => html`
      <div class="head"><a class="quiet" href="#/people">People</a><span class="quiet">/</span><h1>${now.email}</h1>${badge(now.status)}</div>
      ${now.suspension_reason ? html`<p class="failure">Suspended ${when(now.suspended_at)}: ${now.suspension_reason}</p>` : nothing}
      ${facts([
        ["Name", now.name],
        ["Role", now.role],
        ["Company", now.company || "—"],
        ["Phone", now.phone || "—"],
        ["Sites", html`<a href="#/sites?q=${encodeURIComponent(now.email)}">${now.site_count}</a>`],
        ["Second factor", now.second_factor ? badge("active") : "no"],
        ["Signed in last", when(now.last_sign_in_at)],
        ["Browsers signed in", String(now.session_count)],
        ["Added", when(now.created_at)],
      ])}
      ${now.note ? html`<h2>Note</h2><p>${now.note}</p>` : nothing}
      <p class="actions below">${actions(now, me)}</p>`,
      )}
      ${person.value?.role === "customer" ? html`${account.draw()}${members.draw()}` : nothing}
      <div class="head"><h2>API tokens</h2><span class="gap"></span><button @click=${() => makeToken(id, person.value?.email ?? "this user", tokens)}>Create token</button></div>
      ${shown(tokens, (page) => tokensTable(page.items, tokens))}`,
    dispose: () => {
      person.dispose();
      account.dispose?.();
      members.dispose?.();
      tokens.dispose();
    },
  };
}

function actions(now: PersonDetail, me: Me): TemplateResult {
  const known = { id: now.id };
  const change = () =>
    order("person.update", {
      title: `Change ${now.email}`,
      action: "Save",
      wide: true,
      known,
      initial: now,
      fields: ["name", "email", ...(now.id === me.id ? [] : ["role"]), "company", "phone", "note"],
      wishes: { role: { options: ["customer", "administrator", "member"].map((role) => ({ value: role, label: role })) } },
    });
  const suspend = () =>
    order("person.suspend", {
      title: `Suspend ${now.email}`,
      text: "They are signed out at once, their tokens are refused, and they are shown the reason when they sign in. Their sites go on.",
      action: "Suspend",
      dangerous: true,
      known,
    });
  const restore = () =>
    order<{ tokens: number }>("person.restore", {
      title: `Restore ${now.email}?`,
      text: "They may sign in again, and their API tokens work again.",
      action: "Restore",
      known,
      done: ({ tokens }) => note(tokens ? `${tokens} API token${tokens === 1 ? " works" : "s work"} again.` : "They may sign in again."),
    });
  const password = () =>
    order("person.set_password", {
      title: `Set the password of ${now.email}`,
      text: "Every browser that is signed in to the account is signed out.",
      action: "Set password",
      known,
      wishes: { password: { hint: PASSWORD_HINT } },
      done: () => note("The password is set."),
    });
  const disableCode = () =>
    order("person.disable_second_factor", {
      title: `Disable the second factor of ${now.email}`,
      text: "For somebody who has lost it: they are signed out everywhere. Verify their identity first.",
      action: "Disable",
      dangerous: true,
      known,
    });
  const support = () =>
    order("person.impersonate", {
      title: `Impersonate ${now.email}`,
      text: "For 30 minutes you see what this person sees, read-only. The audit of both of you records it.",
      action: "Start",
      known,
      done: () => location.replace("/"),
    });
  const remove = () =>
    order<Job>("user.delete", {
      title: `Delete user ${now.email}`,
      text: html`It is suspended at once and removed by a job. It goes only once it owns nothing:
        ${now.site_count ? `it has ${now.site_count} site${now.site_count === 1 ? "" : "s"} now, which have to be deleted or given to somebody else first` : "it has no sites now"}.`,
      action: "Delete",
      dangerous: true,
      known,
      typed: now.email,
      done: (job) => go(`/jobs/${job.id}`),
    });
  const own = now.id === me.id;
  return html`
    <button @click=${change}>Change</button>
    <button @click=${password}>Set password</button>
    ${now.session_count ? html`<button @click=${() => attempt(() => api.post(`/admin/users/${now.id}/sign-out`), "They are signed out everywhere.")}>Sign out everywhere</button>` : nothing}
    ${!own && now.status === "active" && !now.last_sign_in_at ? html`<button @click=${() => attempt(() => api.post(`/users/${now.id}/invite`), `An invitation is sent to ${now.email}.`)}>Invite</button>` : nothing}
    ${!own && now.status === "active" && now.role === "customer" ? html`<button @click=${support}>Impersonate</button>` : nothing}
    ${now.second_factor && !own ? html`<button class="danger" @click=${disableCode}>Disable second factor</button>` : nothing}
    ${own || now.role === "customer" ? nothing : now.status === "active" ? html`<button class="danger" @click=${suspend}>Suspend</button>` : html`<button @click=${restore}>Restore</button>`}
    ${own || now.role === "customer" ? nothing : html`<button class="danger" @click=${remove}>Delete user</button>`}
    <a class="button" href="#/audit?actor=${encodeURIComponent(now.email)}">What they did</a>`;
}

function makeToken(id: string, email: string, tokens: Resource<Page<Token>>): void {
  order<{ token: string }>("user.token", {
    title: `Create an API token for ${email}`,
    text: "Calls with it act as this user; the audit says so.",
    action: "Create token",
    known: { id },
    wishes: {
      name: { label: "What it is for" },
      scopes: {
        label: "May",
        hint: "read, sites, files, databases, backups, deploy, migrate, jobs; one a line. Empty: everything they may",
      },
      days: { label: "Days", hint: "0: never expires" },
    },
    done: async (made) => {
      await tokens.load();
      return html`<p>The token. It is shown only once.</p>${secret(made.token)}`;
    },
  });
}

function tokensTable(all: Token[], tokens: Resource<Page<Token>>): TemplateResult {
  const revoke = (token: Token) =>
    order("token.delete", {
      title: `Revoke ${token.name}?`,
      text: "Programs that use it are refused at once.",
      action: "Revoke",
      dangerous: true,
      known: { id: token.id },
      done: () => tokens.load(),
    });
  return table(
    ["Name", "Ends in", "May", "Created", "Used", "Expires", ""],
    all.map(
      (
        token,
      ) => html`<tr><td>${token.name}</td><td class="mono">…${token.last_four}</td><td>${token.scopes?.join(", ") ?? "everything they may"}</td>
      <td>${when(token.created_at)}</td><td>${when(token.last_used_at)}</td><td>${token.expires_at ? when(token.expires_at) : "never"}</td>
      <td class="act"><button class="danger" @click=${() => revoke(token)}>Revoke</button></td></tr>`,
    ),
    "No tokens.",
  );
}
