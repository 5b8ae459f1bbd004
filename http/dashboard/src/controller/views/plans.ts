/** The plans that machines are sold in, and what each allows of traffic. For administrators. */
import { html, nothing } from "lit-html";
import { api } from "../../shared/api";
import type { Plan, TrafficPolicy } from "../model";
import type { PolicyAnswer } from "../networking";
import type { View } from "../../shared/page";
import { ask, attempt, badge, count, given, givenNumbers, size, table, type Field, type Fragment } from "../../shared/ui";
import { list } from "../../shared/list";

export function plansView(): View {
  const done = () => plans.load();
  const plans = list<Plan>({
    title: "Plans",
    path: "/plans",
    kinds: ["activity"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${() => add(done)}>Create plan</button>`,
    rows: (all) =>
      table(
        ["Name", "Size", "IPv4", "Traffic a month", "", ""],
        all.map(
          (plan) => html`<tr>
      <td>${plan.name} <span class="quiet">${plan.slug}</span></td>
      <td>${plan.vcpus} × ${size(plan.memory_mib)}, ${plan.disk_gib} GiB</td><td>${plan.ipv4_count}</td><td>${policy(plan)}${
        plan.traffic_pending
          ? html`<br><span class="quiet">from ${day(plan.traffic_pending.effective_from)}:</span> ${policy(plan.traffic_pending)}`
          : nothing
      }</td>
      <td>${plan.enabled ? nothing : badge("disabled")}</td>
      <td class="act"><button aria-label="Traffic policy of ${plan.name}" @click=${() => changeTraffic(plan, done)}>Traffic policy</button>
        <button aria-label="Change ${plan.name}" @click=${() => change(plan, done)}>Change</button>
        <button @click=${() =>
          void attempt(async () => {
            await api.patch(`/plans/${plan.id}`, { enabled: !plan.enabled });
            await done();
          })}>
          ${plan.enabled ? "Disable" : "Enable"}</button></td></tr>`,
        ),
        "No plans.",
      ),
  });
  return plans;
}

function day(at: string): string {
  return new Date(at).toLocaleDateString(undefined, { timeZone: "UTC" });
}

function policy(plan: TrafficPolicy): Fragment {
  if (plan.traffic_gib === null) return html`<span class="quiet">no allowance</span>`;
  const counted = plan.traffic_direction === "both" ? "both ways" : "sent";
  const then = { report: "reported", throttle: `held to ${plan.traffic_throttle_mbps} Mbit/s`, suspend: "cut off" }[plan.traffic_action];
  return html`${size(plan.traffic_gib * 1024)} <span class="quiet">${counted}, then ${then}</span>`;
}

/** The form starts with the policy that was requested last, in force or not. */
function changeTraffic(plan: Plan, done: () => Promise<void>): void {
  const last = plan.traffic_pending ?? plan;
  const options = (...values: [string, string][]) => values.map(([value, label]) => ({ value, label }));
  ask({
    title: `Traffic policy of ${plan.name}`,
    text: "Tighter limits start with the next month; looser ones apply at once.",
    fields: [
      {
        name: "traffic_gib",
        label: "Allowance a month, GiB",
        kind: "number",
        value: last.traffic_gib === null ? "" : String(last.traffic_gib),
        placeholder: "none",
      },
      {
        name: "traffic_direction",
        label: "What counts",
        kind: "select",
        value: last.traffic_direction,
        options: options(["outbound", "what the machine sends"], ["both", "what it sends and receives"]),
      },
      {
        name: "traffic_action",
        label: "Beyond the allowance",
        kind: "select",
        value: last.traffic_action,
        options: options(["report", "report it"], ["throttle", "slow it down"], ["suspend", "cut it off"]),
      },
      {
        name: "traffic_throttle_mbps",
        label: "Throttled to, Mbit/s",
        kind: "number",
        value: last.traffic_throttle_mbps === null ? "" : String(last.traffic_throttle_mbps),
        hint: "for a throttle",
      },
    ],
    action: "Save",
    submit: async (values) => {
      const answer = await api.put<PolicyAnswer>(`/plans/${plan.id}/traffic`, {
        traffic_gib: null,
        traffic_throttle_mbps: null,
        ...given(values, ["traffic_direction", "traffic_action"]),
        ...givenNumbers(values, ["traffic_gib", "traffic_throttle_mbps"]),
      });
      await done();
      return html`<p>${answer.note}</p>
        <p class="quiet">${answer.deferred ? `All of it is in force from ${day(answer.effective_from)} (UTC)` : "All of it is in force now"}, for
          ${count(answer.machines, "machine")} with this plan.</p>`;
    },
  });
}

/** The sizes of a plan, as it has them or as a first suggestion. */
function sizes(plan: Pick<Plan, "vcpus" | "memory_mib" | "disk_gib" | "ipv4_count">): Field[] {
  return [
    { name: "vcpus", label: "Processors", kind: "number", required: true, value: String(plan.vcpus) },
    { name: "memory_mib", label: "Memory, MiB", kind: "number", required: true, value: String(plan.memory_mib) },
    { name: "disk_gib", label: "Disk, GiB", kind: "number", required: true, value: String(plan.disk_gib) },
    { name: "ipv4_count", label: "IPv4 addresses", kind: "number", required: true, value: String(plan.ipv4_count) },
  ];
}

const SIZES = ["vcpus", "memory_mib", "disk_gib", "ipv4_count"];

function change(plan: Plan, done: () => Promise<void>): void {
  ask({
    title: `Change ${plan.name}`,
    text: "Existing machines keep their sizes; their number of IPv4 addresses changes at once.",
    wide: true,
    fields: [{ name: "name", label: "Name", required: true, value: plan.name }, ...sizes(plan)],
    action: "Save",
    submit: async (values) => {
      await api.patch(`/plans/${plan.id}`, { ...given(values, ["name"]), ...givenNumbers(values, SIZES) });
      await done();
    },
  });
}

function add(done: () => Promise<void>): void {
  ask({
    title: "Create plan",
    wide: true,
    fields: [
      { name: "name", label: "Name", required: true, placeholder: "Small" },
      { name: "slug", label: "Short name", required: true, placeholder: "small" },
      ...sizes({ vcpus: 1, memory_mib: 1024, disk_gib: 10, ipv4_count: 1 }),
    ],
    action: "Create",
    submit: async (values) => {
      await api.post("/plans", { ...given(values, ["name", "slug"]), ...givenNumbers(values, SIZES) });
      await done();
    },
  });
}
