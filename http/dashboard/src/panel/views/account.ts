/** A customer's account: their plan, and what they use of it. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, firstOf } from "../../shared/api";
import { go, type Part, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { failure, size } from "../../shared/ui";
import { order } from "../form";
import type { Account, Job, Plan } from "../model";

/** How much of its plan an account uses, for everybody who may see it. `actions` are the buttons next to its heading. */
export function accountUse(id: string, actions: (account: Account) => TemplateResult): Part {
  const account = new Resource<Account>((signal) => api.get(`/accounts/${id}`, {}, signal), ["person", "site"]);
  return {
    draw: () => {
      const now = account.value;
      if (!now) return html`${failure(account.error)}`;
      return html`<div class="head"><h2>${now.plan ? `Plan: ${now.plan}` : "No plan"}</h2><span class="gap"></span>${actions(now)}</div>
        ${now.over.length ? html`<p class="failure">More than the plan allows: ${now.over.join("; ")}. What is there stays; nothing can be added.</p>` : nothing}
        <div class="panel bars">
          ${bar("Sites", now.used.sites, now.allowed.sites, String)}
          ${bar("Databases", now.used.databases, now.allowed.databases, String)}
          ${bar("Disk", now.used.disk_mib, now.allowed.disk_mib, size)}
          ${bar("Traffic this month", now.used.traffic_mib, now.allowed.traffic_mib, size)}
        </div>`;
    },
    dispose: () => account.dispose(),
  };
}

function bar(label: string, used: number, allowed: number | null | undefined, said: (amount: number) => string): TemplateResult {
  return html`<label><span>${label}</span>
    ${allowed == null ? nothing : html`<meter min="0" max=${Math.max(allowed, used, 1)} high=${allowed * 0.9} optimum="0" .value=${used}></meter>`}
    <span class="quiet">${said(used)}${allowed == null ? "" : ` of ${said(allowed)}`}</span></label>`;
}

/** The customer's own. */
export function ownAccountView(id: string): View {
  const use = accountUse(id, () => html`${nothing}`);
  return {
    title: "Your plan",
    draw: () => html`<div class="head"><h1>Your plan</h1></div>${use.draw()}`,
    dispose: () => use.dispose?.(),
  };
}

export async function planChoice(chosen = "") {
  const plans = await firstOf<Plan>("/plans");
  return {
    label: "Plan",
    hint: "How much of everything there may be",
    kind: "select" as const,
    value: chosen,
    options: plans.map(({ name }) => ({ value: name, label: name })),
  };
}

export async function changePlan(account: Account): Promise<void> {
  const plan = await planChoice(account.plan ?? "");
  order("account.change_plan", {
    title: `Change the plan of ${account.email}`,
    action: "Change plan",
    known: { id: account.id },
    fields: ["plan", "accept_over_use"],
    wishes: { plan, accept_over_use: { label: "Also if the account already uses more than the plan allows: nothing can be added then" } },
  });
}

export function suspterminateAccount(account: Account): void {
  order("account.suspend", {
    title: `Suspend ${account.email}`,
    text: "They are signed out at once, their tokens are refused, and visitors of their sites see that those are suspended. Everything is kept.",
    action: "Suspend",
    dangerous: true,
    known: { id: account.id },
    fields: ["reason"],
  });
}

export function unsuspterminateAccount(account: Account): void {
  order<Account>("account.unsuspend", {
    title: `Unsuspend ${account.email}?`,
    text: "They may sign in again, their API tokens work again, and the sites that were suspended with them come back.",
    action: "Unsuspend",
    known: { id: account.id },
    fields: [],
    done: async (now) => {
      // Suspended by itself, and not with the account.
      if (now.status === "suspended") await api.post(`/admin/users/${account.id}/restore`);
    },
  });
}

export function terminateAccount(account: Account): void {
  order<Job>("account.terminate", {
    title: `Terminate account ${account.email}`,
    text: "Every site of theirs is deleted with all its files, databases and names; then the account. It is a job, and there is no way back but a backup.",
    action: "Terminate",
    dangerous: true,
    known: { id: account.id },
    fields: [],
    typed: account.email,
    typedAs: "confirm",
    done: (job) => go(`/jobs/${job.id}`),
  });
}
