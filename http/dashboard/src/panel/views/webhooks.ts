/** Webhooks that receive the server's events. */
import { html } from "lit-html";
import { go, type View } from "../../shared/page";
import { endpointsView, endpointView, secretShown, type Webhooks } from "../../shared/webhooks";
import { order } from "../form";
import type { WebhookEndpoint, WebhookSecret } from "../model";

const EVENTS_WISH = { label: "Events", hint: "* is all events, also those of later releases" };

const WEBHOOKS: Webhooks<WebhookEndpoint> = {
  title: "Webhooks",
  path: "/webhooks",
  page: "/webhooks",
  kinds: ["webhook"],
  empty: "No endpoint gets events. An endpoint is an https:// URL that each event is sent to, signed.",
  events: ({ every_event, events }, inFull) => {
    if (every_event) return "all events";
    if (inFull) return html`${events.map((event) => html`<div>${event}</div>`)}`;
    return events.length > 2 ? `${events.length} events` : events.join(", ");
  },
  tested: "A test event was sent; its data say that it is a test.",
  add: () =>
    order<WebhookSecret>("webhook.create", {
      title: "Create webhook",
      action: "Create",
      wide: true,
      fields: ["url", "events"],
      wishes: { url: { label: "Address", placeholder: "https://example.org/hooks/svc" }, events: EVENTS_WISH },
      done: (made) => {
        go(`/webhooks/${made.id}`);
        return secretShown(made);
      },
    }),
  change: (now) =>
    order<WebhookEndpoint>("webhook.update", {
      title: "Change webhook",
      action: "Save",
      wide: true,
      known: { id: now.id },
      initial: { url: now.url, events: now.every_event ? ["*"] : now.events },
      fields: ["url", "events"],
      wishes: { url: { label: "Address" }, events: EVENTS_WISH },
    }),
};

export function webhooksView(id: string | undefined): View {
  return id ? endpointView(WEBHOOKS, id) : endpointsView(WEBHOOKS);
}
