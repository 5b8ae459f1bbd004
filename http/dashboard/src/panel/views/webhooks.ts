/** Webhooks: whom the server tells of its events. */
import { html } from "lit-html";
import { list } from "../../shared/list";
import { go, type View } from "../../shared/page";
import { badge, secret, table, when, type Fragment } from "../../shared/ui";
import { order } from "../form";
import type { WebhookEndpoint, WebhookSecret } from "../model";

export function webhooksView(): View {
  const endpoints = list<WebhookEndpoint>({
    title: "Webhooks",
    path: "/webhooks",
    kinds: ["webhook"],
    searchable: true,
    buttons: () => html`<button class="primary" @click=${add}>Add an endpoint</button>`,
    rows: (all) =>
      table(
        ["Endpoint", "Told of", "", "Waiting", "Last delivered", "Secret"],
        all.map(
          (one) => html`<tr>
        <td><a href="#/webhooks/${one.id}">${one.url}</a></td><td>${subscription(one)}</td><td>${enabled(one)}</td>
        <td>${one.waiting || "—"}</td><td>${when(one.delivered_at)}</td><td class="mono">…${one.secret_last_four}</td></tr>`,
        ),
        "No endpoint gets events. An endpoint is an https:// URL that each event is sent to, signed.",
      ),
  });
  return endpoints;
}

export function subscription(endpoint: WebhookEndpoint): string {
  if (endpoint.every_event) return "all events";
  return endpoint.events.length > 2 ? `${endpoint.events.length} events` : endpoint.events.join(", ");
}

export function enabled(endpoint: WebhookEndpoint): Fragment {
  return endpoint.enabled ? badge("active") : badge("paused");
}

/** The secret, once: what a receiver checks signatures with. */
export function secretShown(made: WebhookSecret): Fragment {
  return html`<p>The secret with which each request is signed. It is shown this once; the receiver needs it whole, its
      beginning <code>whsec_</code> included.</p>${secret(made.secret)}`;
}

export const EVENTS_WISH = { label: "Told of", hint: "* is all events, also those of later releases" };

function add(): void {
  order<WebhookSecret>("webhook.create", {
    title: "Add an endpoint",
    action: "Add",
    wide: true,
    fields: ["url", "events"],
    wishes: { url: { label: "Address", placeholder: "https://example.org/hooks/svc" }, events: EVENTS_WISH },
    done: (made) => {
      go(`/webhooks/${made.id}`);
      return secretShown(made);
    },
  });
}
