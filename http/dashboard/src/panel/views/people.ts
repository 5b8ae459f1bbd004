/** The people who may sign in: administrators, and customers whose sites are here. */
import { html } from "lit-html";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { badge, table, when } from "../../shared/ui";
import { order } from "../form";
import type { Person } from "../model";

export function peopleView(): View {
  return list<Person>({
    title: "People",
    path: "/admin/users",
    kinds: ["person", "activity"],
    searchable: true,
    filters: [
      { name: "role", label: "Role", options: ["administrator", "customer"] },
      { name: "status", label: "Status", options: ["active", "suspended"] },
    ],
    buttons: () => html`<button class="primary" @click=${add}>Add a person</button>`,
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

function add(): void {
  order<{ id: string }>("user.create", {
    title: "Add a person",
    action: "Add",
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
