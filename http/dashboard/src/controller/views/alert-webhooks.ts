/** Who is told alerts by webhook, and one such receiver: what was sent to it, and what became of that. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { ask, attempt, badge, facts, secret, shown, table, tell, when, type Field, type Fragment } from "../../shared/ui";
import type { AlertDelivery, AlertDeliveryDetail, AlertWebhook, AlertWebhookSecret } from "../model";

const LEAST = [
  { value: "critical", label: "critical alerts" },
  { value: "warning", label: "all alerts" },
];
const MOST_ATTEMPTS = 6;

export function alertWebhooksView(): View {
  const receivers = list<AlertWebhook>({
    title: "Webhooks of alerts",
    path: "/alerts/webhooks",
    kinds: ["alert"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${() => add(() => receivers.load())}>Add a receiver</button>`,
    rows: (all) =>
      table(
        ["Receiver", "Told of", "", "Waiting", "Last delivered", "Secret"],
        all.map(
          (one) => html`<tr>
        <td><a href="#/alert-webhooks/${one.id}">${one.url}</a></td><td>${told(one)}</td><td>${enabled(one)}</td>
        <td>${one.waiting || "—"}</td><td>${when(one.delivered_at)}</td><td class="mono">…${one.secret_last_four}</td></tr>`,
        ),
        "No webhook receives alerts. A receiver is an https:// URL that each alert is sent to, signed.",
      ),
  });
  return receivers;
}

export function alertWebhookView(id: string): View {
  const receiver = new Resource<AlertWebhook>((signal) => api.get(`/alerts/webhooks/${id}`, {}, signal), ["alert"]);
  const deliveries = list<AlertDelivery, Page<AlertDelivery>>({
    title: "Deliveries",
    inner: true,
    path: `/alerts/webhooks/${id}/deliveries`,
    kinds: ["alert"],
    filters: [{ name: "status", label: "Status", options: ["pending", "delivered", "retrying", "failed"] }],
    buttons: () => html`<button @click=${() => void again()}>Reload</button><button @click=${test}>Send a test</button>`,
    rows: (all) =>
      table(
        ["Event", "Status", "Attempts", "Answer", "Sent", "Next attempt", ""],
        all.map(
          (one) => html`<tr>
        <td><button class="link" @click=${() => void look(id, one)}>${one.event}</button></td><td>${badge(one.status, one.error)}</td>
        <td>${one.attempts} of ${MOST_ATTEMPTS}</td><td>${answer(one)}</td><td>${when(one.attempted_at ?? one.created_at)}</td>
        <td>${when(one.next_attempt_at)}</td>
        <td class="act">${one.next_attempt_at ? nothing : html`<button @click=${() => replay(one)}>Send again</button>`}</td></tr>`,
        ),
        "Nothing was sent yet. Deliveries are kept for 14 days, 500 at most.",
      ),
  });
  const again = () => Promise.all([receiver.load(), deliveries.load()]);
  const changing = (work: () => Promise<unknown>, done?: string) =>
    attempt(async () => {
      await work();
      await again();
    }, done);
  const test = () => changing(() => api.post(`/alerts/webhooks/${id}/test`), "A test is on its way, about no alert.");
  const replay = (one: AlertDelivery) =>
    changing(() => api.post(`/alerts/webhooks/${id}/deliveries/${one.id}/replay`), "It is sent again, under the same delivery id.");
  return {
    get title() {
      return receiver.value ? new URL(receiver.value.url).host : "Webhook";
    },
    draw: () => html`${shown(
      receiver,
      (now) => html`
      <div class="head"><a class="quiet" href="#/alert-webhooks">Webhooks of alerts</a><span class="quiet">/</span><h1>${new URL(now.url).host}</h1>${enabled(now)}</div>
      <p class="mono">${now.url}</p>
      ${facts([
        ["Told of", told(now)],
        ["Secret", html`<span class="mono">whsec_…${now.secret_last_four}</span>`],
        ["Secret made", when(now.rotated_at ?? now.created_at)],
        ["Waiting", String(now.waiting)],
        ["Last delivered", when(now.delivered_at)],
      ])}
      <p class="actions below">
        <button @click=${() => change(now, again)}>Change</button>
        <button @click=${() => changing(() => api.patch(`/alerts/webhooks/${id}`, { enabled: !now.enabled }))}>${now.enabled ? "Pause" : "Use it again"}</button>
        <button @click=${() => rotate(now, again)}>New secret</button>
        <button class="danger" @click=${() => remove(now)}>Remove</button></p>`,
    )}
      ${deliveries.draw()}`,
    dispose: () => {
      deliveries.dispose?.();
      receiver.dispose();
    },
  };
}

function told(receiver: AlertWebhook): string {
  return LEAST.find((each) => each.value === receiver.least)?.label ?? receiver.least;
}

function enabled(receiver: AlertWebhook): Fragment {
  return receiver.enabled ? badge("active") : badge("paused");
}

function wishes(now?: AlertWebhook): Field[] {
  return [
    { name: "url", label: "Address", value: now?.url ?? "", placeholder: "https://example.org/hooks/alerts", required: true },
    { name: "least", label: "Told of", kind: "select", value: now?.least ?? "critical", options: LEAST },
  ];
}

/** The secret, once: what a receiver checks signatures with. */
function secretShown(made: AlertWebhookSecret): TemplateResult {
  return html`<p>The secret with which each request is signed. It is shown this once; the receiver needs it whole, its
      beginning <code>whsec_</code> included.</p>${secret(made.secret)}`;
}

function add(added: () => Promise<unknown>): void {
  ask({
    title: "Add a receiver",
    text: "It gets the open alerts, and each alert when it opens, is acknowledged or closes.",
    action: "Add",
    fields: wishes(),
    submit: async (values) => {
      const made = await api.post<AlertWebhookSecret>("/alerts/webhooks", values);
      await added();
      return secretShown(made);
    },
  });
}

function change(now: AlertWebhook, changed: () => Promise<unknown>): void {
  ask({
    title: "Change the receiver",
    action: "Save",
    fields: wishes(now),
    submit: async (values) => {
      await api.patch(`/alerts/webhooks/${now.id}`, values);
      await changed();
    },
  });
}

function rotate(now: AlertWebhook, changed: () => Promise<unknown>): void {
  ask({
    title: "Make a new secret?",
    text: "The old secret stops working at once, for retries too.",
    action: "Make a new one",
    dangerous: true,
    submit: async () => {
      const made = await api.post<AlertWebhookSecret>(`/alerts/webhooks/${now.id}/rotate`);
      await changed();
      return secretShown(made);
    },
  });
}

function remove(now: AlertWebhook): void {
  ask({
    title: "Remove the receiver?",
    text: `${now.url} gets nothing from now on, and its delivery history is deleted.`,
    action: "Remove",
    dangerous: true,
    submit: async () => {
      await api.delete(`/alerts/webhooks/${now.id}`);
      go("/alert-webhooks");
    },
  });
}

function answer(one: AlertDelivery): Fragment {
  if (one.response_status) return html`${one.response_status} <span class="quiet">${one.duration_ms ?? 0} ms</span>`;
  return one.error ? html`<span class="quiet clip" title=${one.error}>${one.error}</span>` : "—";
}

async function look(id: string, one: AlertDelivery): Promise<void> {
  await attempt(async () => {
    const whole = await api.get<AlertDeliveryDetail>(`/alerts/webhooks/${id}/deliveries/${one.id}`);
    tell(
      `${whole.event}: ${whole.status}`,
      html`${facts([
        ["Delivery id", html`<span class="mono">${whole.id}</span>`],
        ["Attempts", `${whole.attempts} of ${MOST_ATTEMPTS}`],
        ["Answer", whole.response_status ? String(whole.response_status) : (whole.error ?? "—")],
        ["Took", whole.duration_ms === null ? "—" : `${whole.duration_ms} ms`],
      ])}<pre class="payload">${JSON.stringify(JSON.parse(whole.payload), null, 2)}</pre>`,
    );
  });
}
