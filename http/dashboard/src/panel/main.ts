/** The panel's dashboard: its sections, and what is shown to who is not signed in. */
import { nothing } from "lit-html";
import { run, type Section } from "../shared/application";
import type { View } from "../shared/page";
import { accountView } from "../shared/second-factor";
import { forgotPasswordView, setPasswordView, signInLinkView, signInView } from "../shared/signin";
import { tokensView } from "../shared/tokens";
import * as live from "./live";
import type { Me } from "./model";
import { ownAccountView } from "./views/account";
import { auditView } from "./views/audit";
import { drillsView } from "./views/drills";
import { healthView } from "./views/health";
import { updatesView } from "./views/updates";
import { importsView, importView } from "./views/imports";
import { jobView } from "./views/job";
import { jobsView } from "./views/jobs";
import { membershipsView, membersView } from "./views/members";
import { peopleView } from "./views/people";
import { personView } from "./views/person";
import { plansView } from "./views/plans";
import { recoveryView } from "./views/recovery";
import { serverView } from "./views/server";
import { operationsView } from "./views/operations";
import { siteView } from "./views/site";
import { sitesView } from "./views/sites";
import { webhooksView } from "./views/webhooks";

const EVERYBODY: Me["role"][] = ["administrator", "customer", "member"];
const ADMINISTRATORS: Me["role"][] = ["administrator"];
const SCOPES = ["read", "sites", "files", "databases", "backups", "deploy", "migrate", "jobs"].map((value) => ({ value, label: value }));

const SECTIONS: Section<Me>[] = [
  { path: "sites", label: "Sites", roles: EVERYBODY, open: (me, [id, ...rest]) => (id ? siteView(me, id, rest) : sitesView(me)) },
  { path: "", label: "Sites", roles: EVERYBODY, unlisted: true, open: (me) => sitesView(me) },
  {
    path: "imports",
    label: "Imports",
    roles: ["administrator", "customer"],
    open: (me, [id]) => (id ? importView(me, id) : importsView()),
  },
  { path: "jobs", label: "Jobs", roles: EVERYBODY, open: (me, [id]) => (id ? jobView(me, id) : jobsView()) },
  { path: "tokens", label: "API tokens", roles: EVERYBODY, open: () => tokensView(SCOPES, undefined, true) },
  { path: "operations", label: "Operations", roles: EVERYBODY, open: (me, [name]) => operationsView(me, name) },
  { path: "members", label: "Members", roles: ["customer"], open: (me) => membersView(me) },
  { path: "memberships", label: "Memberships", roles: ["customer", "member"], open: () => membershipsView() },
  { path: "plan", label: "Your plan", roles: ["customer"], open: (me) => ownAccountView(me.id) },
  {
    path: "people",
    label: "People",
    under: "Administration",
    roles: ADMINISTRATORS,
    open: (me, [id]) => (id ? personView(me, id) : peopleView()),
  },
  { path: "plans", label: "Plans", roles: ADMINISTRATORS, open: () => plansView() },
  { path: "drills", label: "Restore drills", roles: ADMINISTRATORS, open: () => drillsView() },
  { path: "recovery", label: "Recovery", roles: ADMINISTRATORS, open: () => recoveryView() },
  { path: "webhooks", label: "Webhooks", roles: ADMINISTRATORS, open: (_, [id]) => webhooksView(id) },
  { path: "audit", label: "Audit", roles: ADMINISTRATORS, open: () => auditView() },
  { path: "health", label: "Health", roles: ADMINISTRATORS, open: () => healthView() },
  { path: "updates", label: "Updates", roles: ADMINISTRATORS, open: () => updatesView() },
  { path: "server", label: "Server", roles: ADMINISTRATORS, open: () => serverView() },
  { path: "account", label: "Your account", roles: EVERYBODY, unlisted: true, open: (me) => accountView(me) },
];

/** Views for everybody, signed in or not: those that links in mail lead to, and what asks for one. */
const LINKED = new Map<string, (start: () => void) => View>([
  ["set-password", (start) => setPasswordView(start)],
  ["sign-in-link", (start) => signInLinkView(start)],
  ["forgot-password", forgotPasswordView],
]);

run<Me>({
  sections: SECTIONS,
  linked: LINKED,
  signedOut: async (start) => signInView(true, start),
  header: () => nothing,
  live,
  liveMeans: "What is shown is asked for again every few seconds",
});
