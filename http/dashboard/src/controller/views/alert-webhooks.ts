/** Webhooks of alerts: where the controller sends them. */
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
  title: "Webhooks of alerts",
  path: "/alerts/webhooks",
  page: "/alert-webhooks",
  kinds: ["alert"],
  silent: true,
  one: "a receiver",
  empty: "No webhook receives alerts. A receiver is an https:// URL that each alert is sent to, signed.",
  events: ({ least }) => LEAST.find((each) => each.value === least)?.label ?? least,
  tested: "A test is on its way, about no alert.",
  again: "Use it again",
  add: (added) =>
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
    }),
  change: (now, changed) =>
    ask({
      title: "Change the receiver",
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
    { name: "least", label: "Told of", kind: "select", value: now?.least ?? "critical", options: LEAST },
  ];
}

export function alertWebhooksView(id: string | undefined): View {
  return id ? endpointView(WEBHOOKS, id) : endpointsView(WEBHOOKS);
}
