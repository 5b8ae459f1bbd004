/** The people who may sign in: administrators, and customers whose sites are here. */
import { html } from "lit-html";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { attempt, badge, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Account, Person } from "../model";
import { planChoice } from "./account";

export function peopleView(): View {
  return list<Person>({
    title: "People",
    path: "/admin/users",
    kinds: ["person", "activity"],
    searchable: true,
    filters: [
      { name: "role", label: "Role", options: ["administrator", "customer", "member"] },
      { name: "status", label: "Status", options: ["active", "suspended"] },
    ],
    buttons: () => html`<button @click=${add}>Create user</button>
      <button class="primary" @click=${() => void attempt(addCustomer)}>Create account</button>`,
    rows: (people) =>
      table(
        ["Email", "Name", "Role", "Status", "Code as well", "Signed in"],
        people.map(
          (person) => html`<tr>
          <td><a href="#/people/${person.id}">${person.email}</a></td><td>${person.name}</td><td>${person.role}</td>
          <td>${badge(person.status, person.suspension_reason)}</td><td>${person.second_factor ? "yes" : "—"}</td><td>${when(person.last_sign_in_at)}</td></tr>`,
        ),
        "Nobody is like that.",
      ),
  });
}

/** What a new password has to be. */
export const PASSWORD_HINT = "12 to 128 characters, three of: lowercase, uppercase, digits, symbols";

/** Somebody who buys a plan, with a first site if one is named. */
async function addCustomer(): Promise<void> {
  const plan = await planChoice();
  if (!plan.options.length) return go("/plans");
  order<Account>("account.create", {
    title: "Create account",
    action: "Create",
    wide: true,
    fields: ({ invite }) => ["email", "name", "plan", "company", "domain", "www", "invite", ...(invite === "on" ? [] : ["password"])],
    wishes: {
      plan,
      domain: { label: "First site", hint: "Its domain, to create one now" },
      www: { label: "Also at www. of the domain", value: "on" },
      invite: { label: "Invite them by mail instead" },
      password: { hint: PASSWORD_HINT },
    },
    done: ({ id }) => go(`/people/${id}`),
  });
}

function add(): void {
  order<{ id: string }>("user.create", {
    title: "Create user",
    action: "Create",
    wide: true,
    fields: ({ invite }) => ["email", "name", "role", "company", "invite", ...(invite === "on" ? [] : ["password"])],
    wishes: {
      role: { options: ["customer", "administrator"].map((role) => ({ value: role, label: role })), value: "customer" },
      invite: { label: "Invite them by mail instead" },
      password: { hint: PASSWORD_HINT },
    },
    done: ({ id }) => go(`/people/${id}`),
  });
}
