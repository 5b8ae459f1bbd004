/** The people who may sign in. */
import { html } from "lit-html";
import { api } from "../api";
import type { Person } from "../model";
import type { View } from "../page";
import { ask, badge } from "../ui";
import { list } from "./list";

export function peopleView(): View {
  return list<Person>({
    title: "People",
    path: "/admin/users",
    kinds: ["activity"],
    searchable: true,
    filters: [
      { name: "role", label: "Role", options: ["administrator", "staff", "customer"] },
      { name: "status", label: "Status", options: ["active", "suspended"] },
    ],
    buttons: () => html`<button class="primary" @click=${add}>Add a person</button>`,
    rows: (people) => html`<div class="scroll"><table>
      <thead><tr><th scope="col">Email</th><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Status</th></tr></thead>
      <tbody>${people.map((person) => html`<tr><td>${person.email}</td><td>${person.name}</td><td>${person.role}</td><td>${badge(person.status)}</td></tr>`)}</tbody>
    </table></div>`,
  });
}

function add(): void {
  ask({
    title: "Add a person",
    fields: [
      { name: "email", label: "Email", kind: "email", required: true },
      { name: "name", label: "Name", required: true },
      { name: "role", label: "Role", kind: "select", value: "customer", options: ["customer", "staff", "administrator"].map((role) => ({ value: role, label: role })) },
      { name: "password", label: "Password", kind: "password", required: true, autocomplete: "new-password",
        hint: "12 to 128 characters, three of: lowercase, uppercase, digits, symbols" },
    ],
    action: "Add",
    submit: async (values) => void (await api.post("/users", values)),
  });
}
