/** Services: machines that billing systems have ordered, and what became of each. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { list } from "../../shared/list";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, badge, facts, given, shown, table, when, type Field, type Fragment } from "../../shared/ui";
import type { Me, ProvisionCatalogue, Service, ServiceEvent } from "../model";

const MODES: Record<ProvisionCatalogue["suspend_mode"], string> = {
  power_off: "power off: the machine is shut down",
  network_isolate: "network isolate: it keeps running, without a network",
};
const STATES = ["provisioning", "active", "provisioning_failed", "suspended", "terminated"];
const OPEN = new Set<Service["state"]>(["provisioning", "active", "provisioning_failed", "suspended"]);

export function servicesView(me: Me): View {
  return list<Service>({
    title: "Services",
    path: "/provision/services",
    kinds: ["vm", "task", "activity"],
    searchable: true,
    filters: [{ name: "state", label: "State", options: STATES }],
    buttons: () => (me.role === "administrator" ? html`<button @click=${() => void settings()}>Settings</button>` : nothing),
    before: () =>
      html`<p class="quiet">Machines that billing systems have ordered over the API, by the reference that each system gave.</p>`,
    rows: (services) =>
      table(
        ["Billing system", "Reference", "State", "Customer", "Machine", "Ordered"],
        services.map(
          (service) => html`<tr><td>${service.integration}</td><td><a href="#/services/${service.id}">${service.external_ref}</a></td>
            <td>${state(service)}</td><td>${service.customer?.email ?? "—"}</td><td>${machine(service)}</td><td>${when(service.created_at)}</td></tr>`,
        ),
        "No billing system has ordered anything.",
      ),
  });
}

export function serviceView(id: string): View {
  const service = new Resource<Service>((signal) => api.get(`/provision/services/${id}`, {}, signal), ["vm", "task", "activity"]);
  const events = new Resource<ServiceEvent[]>(
    (signal) => api.get(`/provision/services/${id}/events`, {}, signal),
    ["vm", "task", "activity"],
  );
  const again = async () => {
    await Promise.all([service.load(), events.load()]);
  };
  return {
    get title() {
      return service.value?.external_ref ?? "Service";
    },
    draw: () => html`${shown(
      service,
      (now) => html`
      <div class="head"><a class="quiet" href="#/services">Services</a><span class="quiet">/</span><h1>${now.external_ref}</h1>${state(now)}
        <span class="gap"></span>${actions(now, again)}</div>
      ${now.state_reason ? html`<p class=${now.state === "provisioning_failed" ? "failure" : "quiet"}>${now.state_reason}</p>` : nothing}
      ${facts([
        ["Billing system", now.integration],
        ["Customer", now.customer ? `${now.customer.name}, ${now.customer.email}` : "—"],
        ["Machine", machine(now)],
        ["Address", now.machine?.primary_ip ?? "—"],
        ["Plan", now.plan ?? "—"],
        ["Image", now.image ?? "—"],
        ...(now.suspend_mode ? [["Suspended by", MODES[now.suspend_mode]] as [string, Fragment]] : []),
        ...(now.machine?.task_id ? [["Under way", html`<a href="#/tasks/${now.machine.task_id}">a task</a>`] as [string, Fragment]] : []),
        ["Ordered", when(now.created_at)],
        ["Changed", when(now.changed_at)],
        ...(now.terminated_at ? [["Terminated", when(now.terminated_at)] as [string, Fragment]] : []),
      ])}`,
    )}
      <h2>History</h2>
      ${shown(events, (all) =>
        table(
          ["When", "State", "What", "By"],
          all.map(
            (event) =>
              html`<tr><td>${when(event.at)}</td><td>${badge(event.state)}</td><td class="text">${event.message}</td><td>${event.actor}</td></tr>`,
          ),
          "Nothing yet.",
        ),
      )}`,
    dispose: () => {
      service.dispose();
      events.dispose();
    },
  };
}

function state(service: Service): TemplateResult {
  return html`${badge(service.state, service.state_reason)} ${service.settled ? nothing : badge("pending", "The machine does not have this state yet")}`;
}

function machine({ machine: found }: Service): Fragment {
  return found ? html`<a href="#/machines/${found.id}">${found.name}</a> ${badge(found.status)}` : "—";
}

type Again = () => Promise<void>;

function actions(service: Service, again: Again): TemplateResult {
  const { state: now } = service;
  return html`
    ${now === "provisioning_failed" ? html`<button class="primary" @click=${() => retry(service, again)}>Retry</button>` : nothing}
    ${now === "active" ? html`<button class="danger" @click=${() => suspend(service, again)}>Suspend</button>` : nothing}
    ${now === "suspended" ? html`<button @click=${() => unsuspend(service, again)}>Unsuspend</button>` : nothing}
    ${OPEN.has(now) ? html`<button class="danger" @click=${() => terminate(service, again)}>Terminate</button>` : nothing}`;
}

function retry(service: Service, again: Again): void {
  // Of the dialog: pressing its button twice orders one machine.
  const idempotency_key = crypto.randomUUID();
  ask({
    title: `Retry ${service.external_ref}?`,
    text: "The machine of the first attempt is gone. A new one is created for the same service.",
    action: "Retry",
    submit: async () => {
      await api.post(`/provision/services/${service.id}/retry`, { idempotency_key });
      await again();
    },
  });
}

function modes(value: string, first: Field["options"] = []): Field {
  const options = Object.entries(MODES).map(([mode, label]) => ({ value: mode, label }));
  return { name: "mode", label: "How", kind: "select", value, options: [...first, ...options] };
}

function suspend(service: Service, again: Again): void {
  ask({
    title: `Suspend ${service.external_ref}`,
    text: "The billing system is not notified and may go on billing. Disks are not changed.",
    fields: [modes("", [{ value: "", label: "as the settings say" }]), { name: "reason", label: "Reason" }],
    action: "Suspend",
    dangerous: true,
    submit: async (values) => {
      await api.post(`/provision/services/${service.id}/suspend`, given(values, ["mode", "reason"]));
      await again();
    },
  });
}

function unsuspend(service: Service, again: Again): void {
  ask({
    title: `Unsuspend ${service.external_ref}?`,
    text: "The effect of the suspension is reversed.",
    action: "Unsuspend",
    submit: async () => {
      await api.post(`/provision/services/${service.id}/unsuspend`);
      await again();
    },
  });
}

function terminate(service: Service, again: Again): void {
  ask({
    title: `Terminate ${service.external_ref}`,
    text: "Its machine is deleted for good. The billing system is not notified and may go on billing.",
    fields: [{ name: "destroy_disks", label: "Destroy the disk as well; otherwise it is retained as a volume", kind: "checkbox" }],
    action: "Terminate",
    dangerous: true,
    typed: service.external_ref,
    submit: async ({ destroy_disks }) => {
      await api.post(`/provision/services/${service.id}/terminate`, { confirm: true, destroy_disks: destroy_disks === "on" });
      await again();
    },
  });
}

async function settings(): Promise<void> {
  const { suspend_mode } = await api.get<ProvisionCatalogue>("/provision/catalogue");
  ask({
    title: "Provisioning settings",
    text: "The mode of a suspension that names none. Present suspensions stay as they are.",
    fields: [modes(suspend_mode)],
    action: "Save",
    submit: async ({ mode }) => void (await api.put("/provision/settings", { suspend_mode: mode })),
  });
}
