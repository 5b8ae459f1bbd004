/** One machine: its facts, its networking, volumes, snapshots, backups and traffic, its tasks, how busy it is. */
import { html, nothing } from "lit-html";
import { api, type Page } from "../../shared/api";
import { charts } from "../charts";
import type { Machine, Me, MetricSeries, Task } from "../model";
import type { View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, badge, facts, secret, shown, size, when, type Fragment } from "../../shared/ui";
import { machineBackups } from "./machine-backups";
import { markFacts } from "./machine-marks";
import { driveFact } from "./machine-media";
import { movingButton } from "./machine-moving";
import { machineNetworking } from "./machine-networking";
import { processorFact } from "./machine-processor";
import { remakingButtons } from "./machine-remaking";
import { rescueBadge, rescueButton, rescueNote } from "./machine-rescue";
import { machineSnapshots } from "./machine-snapshots";
import { machineTraffic } from "./machine-traffic";
import { powerButtons, RESTART_POLICIES } from "./machines";
import { platform } from "./platform";
import { tasksTable, underWay } from "./tasks";
import { machineVolumes } from "./volumes";

const METRICS_MILLISECONDS = 30_000;

export function machineView(me: Me, id: string): View {
  const machine = new Resource<Machine>((signal) => api.get(`/vms/${id}`, {}, signal), ["vm"]);
  const tasks = new Resource<Page<Task>>((signal) => api.get(`/vms/${id}/tasks`, { page_size: 10 }, signal), ["task"]);
  const metrics = new Resource<MetricSeries>((signal) => api.get(`/vms/${id}/metrics`, { hours: 1 }, signal));
  const networking = machineNetworking(me, {
    id,
    get name() {
      return machine.value?.name ?? "the machine";
    },
    get project_id() {
      return machine.value?.project_id ?? "";
    },
  });
  const volumes = machineVolumes(id, () => machine.value);
  const snapshots = machineSnapshots(id, () => machine.value);
  const backups = machineBackups(me, id, () => machine.value);
  const traffic = machineTraffic(id);
  const timer = setInterval(() => metrics.refresh(), METRICS_MILLISECONDS);
  return {
    get title() {
      return machine.value?.name ?? "Machine";
    },
    draw: () => html`${shown(
      machine,
      (now) => html`
      <div class="head"><h1>${now.name}</h1>${badge(now.status, now.status_reason)}${rescueBadge(now)}<span class="gap"></span>
        ${now.status === "running" && !now.rescue_since ? html`<button @click=${() => resetPassword(now)}>Reset password</button>` : nothing}
        ${movingButton(me, now)}
        ${remakingButtons(me, now)}
        ${rescueButton(now)}
        ${powerButtons(now)}</div>
      ${underWay(tasks.value?.items ?? [])}
      ${now.status_reason ? html`<p class="quiet">${now.status_reason}</p>` : nothing}
      ${rescueNote(now)}
      ${facts([
        ["Size", `${now.vcpus} × ${size(now.memory_mib)}, ${now.disk_gib} GiB`],
        ["Image", now.image_name],
        ["Firmware", platform(now)],
        ["Plan", now.plan_name ?? "—"],
        ["Project", now.project_name],
        ["Host name", now.hostname],
        [
          "Restarted",
          html`${RESTART_POLICIES.find((each) => each.value === now.restart_policy)?.label}
            <button @click=${() => changePolicy(now)}>Change</button>`,
        ],
        processorFact(me, now),
        driveFact(now),
        ...markFacts(now),
        ...(me.role === "customer"
          ? []
          : [["Node", now.node_id ? html`<a href="#/nodes/${now.node_id}">${now.node_name}</a>` : "—"] as [string, Fragment]]),
        ["Created", when(now.created_at)],
      ])}`,
    )}
      ${networking.draw()}
      ${volumes.draw()}
      ${snapshots.draw()}
      ${backups.draw()}
      ${traffic.draw()}
      <h2>Last hour</h2>
      ${metrics.value ? charts(metrics.value) : metrics.error ? html`<p class="quiet">${metrics.error.message}</p>` : html`<p class="quiet">Asking the node…</p>`}
      <h2>Tasks</h2>
      ${shown(tasks, (page) => tasksTable(page.items))}`,
    dispose: () => {
      clearInterval(timer);
      machine.dispose();
      tasks.dispose();
      metrics.dispose();
      networking.dispose?.();
      volumes.dispose?.();
      snapshots.dispose?.();
      backups.dispose?.();
      traffic.dispose?.();
    },
  };
}

function changePolicy(machine: Machine): void {
  ask({
    title: `When ${machine.name} is started again`,
    text: "Applies when it goes off without an order the next time.",
    fields: [{ name: "restart_policy", label: "Restart", kind: "select", value: machine.restart_policy, options: RESTART_POLICIES }],
    action: "Save",
    submit: async (values) => void (await api.patch(`/vms/${machine.id}`, { restart_policy: values["restart_policy"] })),
  });
}

function resetPassword(machine: Machine): void {
  ask({
    title: `Reset the password of ${machine.name}`,
    text: "It is set inside the running machine, through its guest agent.",
    fields: [
      {
        name: "password",
        label: "New password",
        kind: "password",
        autocomplete: "new-password",
        hint: "left empty, one is generated and shown once",
      },
    ],
    action: "Reset password",
    submit: async (values) => {
      const answer = await api.post<{ user: string; password?: string | null }>(
        `/vms/${machine.id}/reset-password`,
        values["password"] ? { password: values["password"] } : {},
      );
      return answer.password
        ? html`<p>The new password of ${answer.user}. It is shown only once.</p>${secret(answer.password)}`
        : undefined;
    },
  });
}
