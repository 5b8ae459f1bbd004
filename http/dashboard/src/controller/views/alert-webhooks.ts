/** Webhooks that receive the controller's alerts. */
import { api } from "../../shared/api";
import type { View } from "../../shared/page";
import { ask, type Field } from "../../shared/ui";
import { endpointsView, endpointView, secretShown, type Webhooks } from "../../shared/webhooks";
import type { AlertWebhook, AlertWebhookSecret } from "../model";

const LEAST = [
  { value: "critical", label: "critical alerts" },
  { value: "warning", label: "all alerts" },
];

const WEBHOOKS: Webhooks<AlertWebhook> = {
  title: "Alert webhooks",
  path: "/alerts/webhooks",
  page: "/alert-webhooks",
  kinds: ["alert"],
  silent: true,
  empty: "No webhook receives alerts. A receiver is an https:// URL that each alert is sent to, signed.",
  events: ({ least }) => LEAST.find((each) => each.value === least)?.label ?? least,
  tested: "A test was sent; it is about no alert.",
  add: (added) =>
    ask({
      title: "Create webhook",
      text: "It gets all open alerts, and each alert when it opens, is acknowledged or closes.",
      action: "Create",
      fields: wishes(),
      submit: async (values) => {
        const made = await api.post<AlertWebhookSecret>("/alerts/webhooks", values);
        await added();
        return secretShown(made);
      },
    }),
  change: (now, changed) =>
    ask({
      title: "Change webhook",
      action: "Save",
      fields: wishes(now),
      submit: async (values) => {
        await api.patch(`/alerts/webhooks/${now.id}`, values);
        await changed();
      },
    }),
};

function wishes(now?: AlertWebhook): Field[] {
  return [
    { name: "url", label: "Address", value: now?.url ?? "", placeholder: "https://example.org/hooks/alerts", required: true },
    { name: "least", label: "Alerts", kind: "select", value: now?.least ?? "critical", options: LEAST },
  ];
}

export function alertWebhooksView(id: string | undefined): View {
  return id ? endpointView(WEBHOOKS, id) : endpointsView(WEBHOOKS);
}
