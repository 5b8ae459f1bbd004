/** The people who may sign in. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import type { Restored } from "../generated";
import type { Me, Person } from "../model";
import type { View } from "../../shared/page";
import { ask, attempt, badge, when } from "../../shared/ui";
import { list } from "../../shared/list";

export function peopleView(me: Me): View {
  return list<Person>({
    title: "People",
    path: "/admin/users",
    kinds: ["activity"],
    searchable: true,
    filters: [
      { name: "role", label: "Role", options: ["administrator", "staff", "customer"] },
      { name: "status", label: "Status", options: ["active", "suspended"] },
    ],
    buttons: () => html`<button class="primary" @click=${add}>Create user</button>`,
    rows: (people) => html`<div class="scroll"><table>
      <thead><tr><th scope="col">Email</th><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Status</th><th scope="col">Signed in</th><th></th></tr></thead>
      <tbody>${people.map(
        (
          person,
        ) => html`<tr><td>${person.email}</td><td>${person.name}</td><td>${person.role}</td><td>${badge(person.status, person.suspension_reason)}</td>
        <td>${when(person.last_sign_in_at)}</td><td class="act">${person.id === me.id ? nothing : actions(person)}</td></tr>`,
      )}</tbody>
    </table></div>`,
  });
}

function actions(person: Person): TemplateResult {
  const path = `/admin/users/${person.id}`;
  const withReason = (title: string, text: string, action: string, verb: string, done?: () => void) => () =>
    ask({
      title,
      text,
      fields: [{ name: "reason", label: "Reason", required: true }],
      action,
      submit: async (values) => {
        await api.post(`${path}/${verb}`, values);
        done?.();
      },
    });
  return html`
    ${
      person.role === "customer" && person.status === "active"
        ? html`<button @click=${withReason(
            `View the account of ${person.email}`,
            "For 30 minutes you see what this person sees, read-only. The audit of both of you records it.",
            "Start",
            "impersonate",
            () => location.replace("/"),
          )}>Impersonate</button>`
        : nothing
    }
    ${
      person.status === "active" && !person.last_sign_in_at
        ? html`<button @click=${() => void attempt(() => api.post(`/users/${person.id}/invite`), `An invitation is sent to ${person.email}.`)}>Invite</button>`
        : nothing
    }
    ${
      person.status === "active"
        ? html`<button class="danger" @click=${withReason(`Suspend ${person.email}`, "They are signed out at once, and shown the reason when they sign in.", "Suspend", "suspend")}>Suspend</button>`
        : html`<button @click=${() => restore(person)}>Restore</button>`
    }
    ${
      person.second_factor
        ? html`<button class="danger" @click=${withReason(
            `Disable the second factor of ${person.email}`,
            "For somebody who has lost it: they are signed out everywhere, and get a mail. Verify their identity first.",
            "Disable",
            "second-factor/disable",
          )}>Disable second factor</button>`
        : nothing
    }
    <a href="#/people/${person.id}">Tokens</a>`;
}

function restore(person: Person): void {
  ask({
    title: `Restore ${person.email}?`,
    text: "They may sign in again, and their API tokens work again.",
    action: "Restore",
    submit: async () => {
      const { tokens } = await api.post<Restored>(`/admin/users/${person.id}/restore`);
      return tokens
        ? html`<p>
            ${tokens === 1 ? "1 API token works" : `${tokens} API tokens work`} again.
            <a href="#/people/${person.id}">Look at them</a>
          </p>`
        : undefined;
    },
  });
}

function add(): void {
  ask({
    title: "Create user",
    fields: [
      { name: "email", label: "Email", kind: "email", required: true },
      { name: "name", label: "Name", required: true },
      {
        name: "role",
        label: "Role",
        kind: "select",
        value: "customer",
        options: ["customer", "staff", "administrator"].map((role) => ({ value: role, label: role })),
      },
      {
        name: "password",
        label: "Password",
        kind: "password",
        autocomplete: "new-password",
        hint: "12 to 128 characters, three of: lowercase, uppercase, digits, symbols. Left empty, the person is mailed an invitation to choose one.",
      },
    ],
    action: "Create",
    submit: async ({ password, ...person }) =>
      void (await api.post("/users", password ? { ...person, password } : { ...person, invite: true })),
  });
}
