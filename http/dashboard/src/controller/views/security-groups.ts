/** Security groups: named sets of rules about machines' own traffic. */
import { html, type TemplateResult } from "lit-html";
import { firstOf, api } from "../../shared/api";
import type { Me, Named } from "../model";
import type { Rule, SecurityGroup } from "../networking";
import { go, type View } from "../../shared/page";
import { ask, attempt, badge, count, given, table } from "../../shared/ui";
import { list } from "../../shared/list";

export function securityGroupsView(me: Me): View {
  return list<SecurityGroup>({
    title: "Security groups",
    path: "/security-groups",
    kinds: ["activity", "vm"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${() => void attempt(() => create(me))}>Create security group</button>`,
    rows: (groups) =>
      table(
        ["Name", "Project", "Comes in", "Goes out", "Rules", "Machines"],
        groups.map(
          (group) => html`<tr>
      <td><a href="#/security-groups/${group.id}">${group.name}</a>${group.description ? html` <span class="quiet">${group.description}</span>` : ""}</td>
      <td>${group.project_name ?? html`<span class="quiet">every project</span>`}</td>
      <td>${otherwise(group.default_ingress)}</td><td>${otherwise(group.default_egress)}</td>
      <td>${group.rules.length}</td><td>${group.machine_count}</td></tr>`,
        ),
        "No security groups. A machine in none is not filtered; in one, only what its rules accept comes in.",
      ),
  });
}

function otherwise(action: Rule["action"]): TemplateResult {
  return badge(action);
}

const DEFAULTS = [
  { value: "drop", label: "drop" },
  { value: "accept", label: "accept" },
];

async function create(me: Me): Promise<void> {
  const projects = await firstOf<Named>("/projects");
  const own = projects.map((project) => ({ value: project.id, label: project.name }));
  ask({
    title: "Create security group",
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "web" },
      { name: "description", label: "Description" },
      {
        name: "project_id",
        label: "Project",
        kind: "select",
        options: me.role === "administrator" ? [{ value: "", label: "every project" }, ...own] : own,
        value: projects[0]?.id ?? "",
      },
      { name: "default_ingress", label: "Default ingress", kind: "select", options: DEFAULTS },
      { name: "default_egress", label: "Default egress", kind: "select", options: DEFAULTS, value: "accept" },
    ],
    action: "Create",
    submit: async (values) => {
      const made = await api.post<SecurityGroup>(
        "/security-groups",
        given(values, ["name", "description", "project_id", "default_ingress", "default_egress"]),
      );
      go(`/security-groups/${made.id}`);
    },
  });
}

/** "3 machines": what a change of a group reaches. */
export function reach(group: SecurityGroup): string {
  return group.machine_count ? `It reaches ${count(group.machine_count, "machine")} at once.` : "No machine is in this group yet.";
}
