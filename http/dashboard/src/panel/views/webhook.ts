/** One webhook endpoint: what it is told of, what was sent to it, and what became of each delivery. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "../../shared/api";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { Resource } from "../../shared/resource";
import { attempt, badge, facts, shown, table, tell, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import { EVENTS_WISH, secretShown, enabled } from "./webhooks";
import type { WebhookDelivery, WebhookDeliveryDetail, WebhookEndpoint, WebhookSecret } from "../model";

export function webhookView(id: string): View {
  const endpoint = new Resource<WebhookEndpoint>((signal) => api.get(`/webhooks/${id}`, {}, signal), ["webhook"]);
  const deliveries = list<WebhookDelivery, Page<WebhookDelivery>>({
    title: "Deliveries",
    inner: true,
    path: `/webhooks/${id}/deliveries`,
    kinds: ["webhook"],
    filters: [{ name: "status", label: "Status", options: ["pending", "delivered", "retrying", "failed"] }],
    buttons: () => html`<button @click=${test}>Send a test</button>`,
    rows: (all) =>
      table(
        ["Event", "Status", "Attempts", "Answer", "Sent", "Next attempt", ""],
        all.map(
          (one) => html`<tr>
        <td><button class="link" @click=${() => void look(id, one)}>${one.event}</button></td><td>${badge(one.status, one.error)}</td>
        <td>${one.attempts} of 6</td><td>${answer(one)}</td><td>${when(one.attempted_at ?? one.created_at)}</td><td>${when(one.next_attempt_at)}</td>
        <td class="act">${one.next_attempt_at ? nothing : html`<button @click=${() => replay(one)}>Send again</button>`}</td></tr>`,
        ),
        "Nothing was sent yet. Deliveries are kept for 14 days, 500 at most.",
      ),
  });
  const test = () => attempt(() => api.post(`/webhooks/${id}/test`), "A test is on its way: an event whose data say so.");
  const replay = (one: WebhookDelivery) =>
    attempt(() => api.post(`/webhooks/${id}/deliveries/${one.id}/replay`), "It is sent again, under the same delivery id.");
  return {
    get title() {
      return endpoint.value ? new URL(endpoint.value.url).host : "Webhook";
    },
    draw: () => html`${shown(
      endpoint,
      (now) => html`
      <div class="head"><a class="quiet" href="#/webhooks">Webhooks</a><span class="quiet">/</span><h1>${new URL(now.url).host}</h1>${enabled(now)}</div>
      <p class="mono">${now.url}</p>
      ${facts([
        ["Told of", now.every_event ? "all events" : html`${now.events.map((event) => html`<div>${event}</div>`)}`],
        ["Secret", html`<span class="mono">whsec_…${now.secret_last_four}</span>`],
        ["Secret made", when(now.rotated_at ?? now.created_at)],
        ["Waiting", String(now.waiting)],
        ["Last delivered", when(now.delivered_at)],
      ])}
      <p class="actions below">${actions(now)}</p>`,
    )}
      ${deliveries.draw()}`,
    dispose: () => {
      deliveries.dispose?.();
      endpoint.dispose();
    },
  };
}

function answer(one: WebhookDelivery): Fragment {
  if (one.response_status) return html`${one.response_status} <span class="quiet">${one.duration_ms ?? 0} ms</span>`;
  return one.error ? html`<span class="quiet clip" title=${one.error}>${one.error}</span>` : "—";
}

async function look(id: string, one: WebhookDelivery): Promise<void> {
  await attempt(async () => {
    const whole = await api.get<WebhookDeliveryDetail>(`/webhooks/${id}/deliveries/${one.id}`);
    tell(
      `${whole.event}: ${whole.status}`,
      html`${facts([
        ["Delivery id", html`<span class="mono">${whole.id}</span>`],
        ["Attempts", `${whole.attempts} of 6`],
        ["Answer", whole.response_status ? String(whole.response_status) : (whole.error ?? "—")],
        ["Took", whole.duration_ms === null ? "—" : `${whole.duration_ms} ms`],
      ])}<pre class="payload">${pretty(whole.payload)}</pre>`,
    );
  });
}

function pretty(payload: string): string {
  return JSON.stringify(JSON.parse(payload), null, 2);
}

function actions(now: WebhookEndpoint): TemplateResult {
  const known = { id: now.id };
  const change = () =>
    order<WebhookEndpoint>("webhook.update", {
      title: "Change the endpoint",
      action: "Save",
      wide: true,
      known,
      initial: { url: now.url, events: now.every_event ? ["*"] : now.events },
      fields: ["url", "events"],
      wishes: { url: { label: "Address" }, events: EVENTS_WISH },
    });
  const rotate = () =>
    order<WebhookSecret>("webhook.rotate", {
      title: "Make a new secret?",
      text: "The old secret stops working at once, for retries too.",
      action: "Make a new one",
      dangerous: true,
      known,
      done: secretShown,
    });
  const remove = () =>
    order("webhook.delete", {
      title: "Remove the endpoint?",
      text: `${now.url} gets nothing from now on, and its delivery history is deleted.`,
      action: "Remove",
      dangerous: true,
      known,
      done: () => go("/webhooks"),
    });
  return html`
    <button @click=${change}>Change</button>
    <button @click=${() => attempt(() => api.patch(`/webhooks/${now.id}`, { enabled: !now.enabled }))}>${now.enabled ? "Pause" : "Send again"}</button>
    <button @click=${rotate}>New secret</button>
    <button class="danger" @click=${remove}>Remove</button>`;
}
