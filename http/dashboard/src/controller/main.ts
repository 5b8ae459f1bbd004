/** The controller's dashboard: its sections, and what is shown to who is not signed in. */
import { api } from "../shared/api";
import { run, type Section } from "../shared/application";
import * as live from "./live";
import type { Me, SetupStatus } from "./model";
import type { View } from "../shared/page";
import { searchBox } from "./search";
import { activityView } from "./views/activity";
import { alertWebhooksView } from "./views/alert-webhooks";
import { alertsView } from "./views/alerts";
import { backupFilesView } from "./views/backup-files";
import { imagesView } from "./views/images";
import { machineView } from "./views/machine";
import { machinesView } from "./views/machines";
import { nodeForStaff, nodeView } from "./views/node";
import { networksView } from "./views/networks";
import { nodesView } from "./views/nodes";
import { overviewView } from "./views/overview";
import { peopleView } from "./views/people";
import { plansView } from "./views/plans";
import { poolView } from "./views/pool";
import { accountView } from "../shared/second-factor";
import { securityGroupView } from "./views/security-group";
import { securityGroupsView } from "./views/security-groups";
import { forgotPasswordView, setPasswordView, setupView, signInView } from "../shared/signin";
import { servicesView, serviceView } from "./views/services";
import { taskView } from "./views/task";
import { tasksView } from "./views/tasks";
import { tokensView } from "../shared/tokens";
import { trafficView } from "./views/traffic";
import { volumesView } from "./views/volumes";

const TOKEN_SCOPES = [
  { value: "read", label: "read" },
  { value: "write", label: "read and write" },
  { value: "provision", label: "provision (billing systems)" },
];

function machines(me: Me, [id, part, backup]: string[]): View {
  if (!id) return machinesView(me);
  return part === "backups" && backup ? backupFilesView(id, backup) : machineView(me, id);
}

const EVERYBODY: Me["role"][] = ["administrator", "staff", "customer"];
const SECTIONS: Section<Me>[] = [
  { path: "", label: "Overview", roles: EVERYBODY, open: (me) => overviewView(me) },
  { path: "machines", label: "Machines", roles: EVERYBODY, open: machines },
  { path: "volumes", label: "Volumes", roles: EVERYBODY, open: (me) => volumesView(me) },
  { path: "tasks", label: "Tasks", roles: EVERYBODY, open: (_, [id]) => (id ? taskView(id) : tasksView()) },
  {
    path: "security-groups",
    label: "Security groups",
    roles: EVERYBODY,
    open: (me, [id]) => (id ? securityGroupView(id) : securityGroupsView(me)),
  },
  {
    path: "services",
    label: "Services",
    roles: ["administrator", "staff"],
    open: (me, [id]) => (id ? serviceView(id) : servicesView(me)),
  },
  { path: "traffic", label: "Traffic", roles: EVERYBODY, open: () => trafficView() },
  {
    path: "nodes",
    label: "Nodes",
    roles: ["administrator"],
    rolesOfOne: ["administrator", "staff"],
    open: (me, [id]) => (!id ? nodesView() : me.role === "administrator" ? nodeView(id) : nodeForStaff(id)),
  },
  { path: "networks", label: "Networks", roles: ["administrator"], open: (_, [id]) => (id ? poolView(id) : networksView()) },
  { path: "plans", label: "Plans", roles: ["administrator"], open: () => plansView() },
  { path: "images", label: "Images", roles: EVERYBODY, open: (me) => imagesView(me) },
  { path: "people", label: "People", roles: ["administrator"], open: (me, [id]) => (id ? tokensView(TOKEN_SCOPES, id) : peopleView(me)) },
  { path: "tokens", label: "API tokens", roles: EVERYBODY, open: () => tokensView(TOKEN_SCOPES) },
  { path: "alerts", label: "Alerts", roles: EVERYBODY, open: (me) => alertsView(me) },
  {
    path: "alert-webhooks",
    label: "Alert webhooks",
    roles: ["administrator"],
    unlisted: true,
    open: (_, [id]) => alertWebhooksView(id),
  },
  { path: "activity", label: "Activity", roles: EVERYBODY, open: (me) => activityView(me) },
  { path: "account", label: "Your account", roles: EVERYBODY, unlisted: true, open: (me) => accountView(me) },
];

/** Views for everybody, signed in or not: those that links in mail lead to, and what asks for one. */
const LINKED = new Map<string, (start: () => void) => View>([
  ["set-password", (start) => setPasswordView(start)],
  ["forgot-password", forgotPasswordView],
]);

run<Me>({
  sections: SECTIONS,
  linked: LINKED,
  signedOut: async (start) => {
    const status = await api.get<SetupStatus>("/setup/status");
    return status.required ? setupView(start) : signInView(status.sends_mail, start);
  },
  header: searchBox,
  live,
  liveMeans: "Changes appear as they happen",
});
