/** The pages of webhooks in both services: the endpoints, and one of them with its deliveries. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, type Page } from "./api";
import type { Kind } from "./changes";
import { list } from "./list";
import { go, type View } from "./page";
import { Resource } from "./resource";
import { ask, attempt, badge, facts, secret, shown, table, tell, when, type Fragment } from "./ui";

interface Endpoint {
  id: string;
  url: string;
  enabled: boolean;
  secret_last_four: string;
  waiting: number;
  delivered_at: string | null;
  created_at: string;
  rotated_at: string | null;
}

interface Delivery {
  id: string;
  event: string;
  status: string;
  attempts: number;
  created_at: string;
  attempted_at: string | null;
  next_attempt_at: string | null;
  duration_ms: number | null;
  response_status: number | null;
  error: string | null;
}

/** What differs between the services. */
export interface Webhooks<E extends Endpoint> {
  title: string;
  /** The path of the API, and that of the pages. */
  path: string;
  page: string;
  kinds: Kind[];
  /** No event tells that a delivery has changed: the page reloads after each action, and has a button for it. */
  silent?: boolean;
  empty: string;
  /** The events that it gets, in a row or in full. */
  events: (endpoint: E, inFull: boolean) => Fragment;
  tested: string;
  add: (added: () => Promise<unknown>) => void;
  change: (endpoint: E, changed: () => Promise<unknown>) => void;
}

const MOST_ATTEMPTS = 6;

export function endpointsView<E extends Endpoint>(webhooks: Webhooks<E>): View {
  const endpoints = list<E>({
    title: webhooks.title,
    path: webhooks.path,
    kinds: webhooks.kinds,
    searchable: true,
    buttons: () => html`<button class="primary" @click=${() => webhooks.add(endpoints.load)}>Create webhook</button>`,
    rows: (all) =>
      table(
        ["Address", "Events", "", "Waiting", "Last delivered", "Secret"],
        all.map(
          (one) => html`<tr>
        <td><a href="#${webhooks.page}/${one.id}">${one.url}</a></td><td>${webhooks.events(one, false)}</td><td>${enabled(one)}</td>
        <td>${one.waiting || "—"}</td><td>${when(one.delivered_at)}</td><td class="mono">…${one.secret_last_four}</td></tr>`,
        ),
        webhooks.empty,
      ),
  });
  return endpoints;
}

export function endpointView<E extends Endpoint>(webhooks: Webhooks<E>, id: string): View {
  const path = `${webhooks.path}/${id}`;
  const endpoint = new Resource<E>((signal) => api.get(path, {}, signal), webhooks.kinds);
  const deliveries = list<Delivery, Page<Delivery>>({
    title: "Deliveries",
    inner: true,
    path: `${path}/deliveries`,
    kinds: webhooks.kinds,
    filters: [{ name: "status", label: "Status", options: ["pending", "delivered", "retrying", "failed"] }],
    buttons: () =>
      html`${webhooks.silent ? html`<button @click=${() => void reload()}>Reload</button>` : nothing}<button @click=${test}>Send test</button>`,
    rows: (all) =>
      table(
        ["Event", "Status", "Attempts", "Answer", "Sent", "Next attempt", ""],
        all.map(
          (one) => html`<tr>
        <td><button class="link" @click=${() => void look(path, one)}>${one.event}</button></td><td>${badge(one.status, one.error)}</td>
        <td>${one.attempts} of ${MOST_ATTEMPTS}</td><td>${answer(one)}</td><td>${when(one.attempted_at ?? one.created_at)}</td>
        <td>${when(one.next_attempt_at)}</td>
        <td class="act">${one.next_attempt_at ? nothing : html`<button @click=${() => replay(one)}>Replay</button>`}</td></tr>`,
        ),
        "Nothing was sent yet. Deliveries are kept for 14 days, 500 at most.",
      ),
  });
  const reload = () => Promise.all([endpoint.load(), deliveries.load()]);
  const acting = (work: () => Promise<unknown>, done?: string) =>
    attempt(async () => {
      await work();
      if (webhooks.silent) await reload();
    }, done);
  const test = () => acting(() => api.post(`${path}/test`), webhooks.tested);
  const replay = (one: Delivery) =>
    acting(() => api.post(`${path}/deliveries/${one.id}/replay`), "It was sent again, with the same delivery id.");
  const toggle = (now: E) => acting(() => api.patch(path, { enabled: !now.enabled }));
  return {
    get title() {
      return endpoint.value ? new URL(endpoint.value.url).host : "Webhook";
    },
    draw: () => html`${shown(
      endpoint,
      (now) => html`
      <div class="head"><a class="quiet" href="#${webhooks.page}">${webhooks.title}</a><span class="quiet">/</span><h1>${new URL(now.url).host}</h1>${enabled(now)}</div>
      <p class="mono">${now.url}</p>
      ${facts([
        ["Events", webhooks.events(now, true)],
        ["Secret", html`<span class="mono">whsec_…${now.secret_last_four}</span>`],
        ["Secret created", when(now.rotated_at ?? now.created_at)],
        ["Waiting", String(now.waiting)],
        ["Last delivered", when(now.delivered_at)],
      ])}
      <p class="actions below">
        <button @click=${() => webhooks.change(now, reload)}>Change</button>
        <button @click=${() => toggle(now)}>${now.enabled ? "Disable" : "Enable"}</button>
        <button @click=${() => rotate(path, reload)}>Rotate secret</button>
        <button class="danger" @click=${() => remove(webhooks, now)}>Delete</button></p>`,
    )}
      ${deliveries.draw()}`,
    dispose: () => {
      deliveries.dispose?.();
      endpoint.dispose();
    },
  };
}

/** The secret, once: what a receiver checks signatures with. */
export function secretShown(made: { secret: string }): TemplateResult {
  return html`<p>The secret with which each request is signed. It is shown only once; the receiver needs it whole, its
      beginning <code>whsec_</code> included.</p>${secret(made.secret)}`;
}

function enabled(endpoint: Endpoint): Fragment {
  return endpoint.enabled ? badge("active") : badge("disabled");
}

function answer(one: Delivery): Fragment {
  if (one.response_status) return html`${one.response_status} <span class="quiet">${one.duration_ms ?? 0} ms</span>`;
  return one.error ? html`<span class="quiet clip" title=${one.error}>${one.error}</span>` : "—";
}

async function look(path: string, one: Delivery): Promise<void> {
  await attempt(async () => {
    const whole = await api.get<Delivery & { payload: string }>(`${path}/deliveries/${one.id}`);
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

function rotate(path: string, rotated: () => Promise<unknown>): void {
  ask({
    title: "Rotate the secret?",
    text: "The old secret stops working at once, for retries too.",
    action: "Rotate",
    dangerous: true,
    submit: async () => {
      const made = await api.post<{ secret: string }>(`${path}/rotate`);
      await rotated();
      return secretShown(made);
    },
  });
}

function remove<E extends Endpoint>(webhooks: Webhooks<E>, endpoint: E): void {
  ask({
    title: "Delete the webhook?",
    text: `${endpoint.url} gets no events from now on, and its delivery history is deleted.`,
    action: "Delete",
    dangerous: true,
    submit: async () => {
      await api.delete(`${webhooks.path}/${endpoint.id}`);
      go(webhooks.page);
    },
  });
}
