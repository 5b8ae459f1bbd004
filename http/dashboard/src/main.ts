/** The dashboard: who is signed in, the frame around every view, and which view the address names. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, ApiError } from "./api";
import * as live from "./live";
import type { Me, SetupStatus } from "./model";
import { address, changed, go, mount, type View } from "./page";
import { attempt, notesTemplate } from "./ui";
import { searchBox } from "./search";
import { activityView } from "./views/activity";
import { alertsView } from "./views/alerts";
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
import { accountView } from "./views/second-factor";
import { securityGroupView } from "./views/security-group";
import { securityGroupsView } from "./views/security-groups";
import { forgotPasswordView, setPasswordView, setupView, signInView } from "./views/signin";
import { taskView } from "./views/task";
import { tasksView } from "./views/tasks";
import { tokensView } from "./views/tokens";
import { trafficView } from "./views/traffic";

type Session =
  { is: "loading" } | { is: "unreachable"; why: string } | { is: "setup" } | { is: "out"; sendsMail: boolean } | { is: "in"; me: Me };

interface Section {
  path: string;
  label: string;
  roles: Me["role"][];
  /** Who may open a page of one of them, where that is more than who sees the list. */
  rolesOfOne?: Me["role"][];
  /** It is led to from elsewhere than the list of sections. */
  unlisted?: boolean;
  open: (me: Me, id: string | undefined) => View;
}

const EVERYBODY: Me["role"][] = ["administrator", "staff", "customer"];
const SECTIONS: Section[] = [
  { path: "", label: "Overview", roles: EVERYBODY, open: (me) => overviewView(me) },
  { path: "machines", label: "Machines", roles: EVERYBODY, open: (me, id) => (id ? machineView(me, id) : machinesView(me)) },
  { path: "tasks", label: "Tasks", roles: EVERYBODY, open: (_, id) => (id ? taskView(id) : tasksView()) },
  {
    path: "security-groups",
    label: "Security groups",
    roles: EVERYBODY,
    open: (me, id) => (id ? securityGroupView(id) : securityGroupsView(me)),
  },
  { path: "traffic", label: "Traffic", roles: EVERYBODY, open: () => trafficView() },
  {
    path: "nodes",
    label: "Nodes",
    roles: ["administrator"],
    rolesOfOne: ["administrator", "staff"],
    open: (me, id) => (!id ? nodesView() : me.role === "administrator" ? nodeView(id) : nodeForStaff(id)),
  },
  { path: "networks", label: "Networks", roles: ["administrator"], open: (_, id) => (id ? poolView(id) : networksView()) },
  { path: "plans", label: "Plans", roles: ["administrator"], open: () => plansView() },
  { path: "images", label: "Images", roles: EVERYBODY, open: (me) => imagesView(me) },
  { path: "people", label: "People", roles: ["administrator"], open: (me, id) => (id ? tokensView(id) : peopleView(me)) },
  { path: "tokens", label: "API tokens", roles: EVERYBODY, open: () => tokensView() },
  { path: "alerts", label: "Alerts", roles: EVERYBODY, open: (me) => alertsView(me) },
  { path: "activity", label: "Activity", roles: EVERYBODY, open: () => activityView() },
  { path: "account", label: "Your account", roles: EVERYBODY, unlisted: true, open: (me) => accountView(me) },
];

/** Views for everybody, signed in or not: those that links in mail lead to, and what asks for one. */
const LINKED = new Map<string, () => View>([
  ["set-password", () => setPasswordView(() => void begin())],
  ["forgot-password", forgotPasswordView],
]);

/** "2 minutes ago" is true for so long without an event. */
const AGE_MILLISECONDS = 20_000;
const RETRY_MILLISECONDS = 3000;

let session: Session = { is: "loading" };
let retry: number | undefined;
let view: View | null = null;
let opened = "";

/** Learn who is signed in, and show what that means. */
async function begin(): Promise<void> {
  try {
    session = { is: "in", me: await api.get<Me>("/me") };
    live.start();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    live.stop();
    session = error.status === 401 ? await signedOut() : { is: "unreachable", why: error.message };
  }
  clearTimeout(retry);
  if (session.is === "unreachable") retry = window.setTimeout(() => void begin(), RETRY_MILLISECONDS);
  reopen();
}

async function signedOut(): Promise<Session> {
  try {
    const status = await api.get<SetupStatus>("/setup/status");
    return status.required ? { is: "setup" } : { is: "out", sendsMail: status.sends_mail };
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return { is: "unreachable", why: error.message };
  }
}

/** Show the view that the address names. The same view, seen by the same person, keeps what it has loaded. */
function reopen(): void {
  const { parts } = address();
  const name = linked() ? (parts[0] ?? "") : session.is === "in" ? [session.me.id, ...parts].join("/") : session.is;
  if (!view || name !== opened) {
    view?.dispose?.();
    opened = name;
    view = open(parts);
    document.querySelector("main")?.scrollTo(0, 0);
  }
  changed();
}

function linked(): boolean {
  return (session.is === "in" || session.is === "out") && LINKED.has(address().parts[0] ?? "");
}

function open([path = "", id]: string[]): View | null {
  if (linked()) return LINKED.get(path)?.() ?? null;
  switch (session.is) {
    case "setup":
      return setupView(() => void begin());
    case "out":
      return signInView(session.sendsMail, () => void begin());
    case "in": {
      const { me } = session;
      const section = SECTIONS.find(
        (candidate) => candidate.path === path && ((id && candidate.rolesOfOne) || candidate.roles).includes(me.role),
      );
      return section ? section.open(me, id) : { title: "Not here", draw: () => html`<h1>There is no such page</h1>` };
    }
    default:
      return null;
  }
}

function draw(): TemplateResult {
  document.title = view ? `${view.title} · svc` : "svc";
  switch (session.is) {
    case "loading":
      return html`<p class="alone quiet">Loading…</p>`;
    case "unreachable":
      return html`<div class="alone"><p>${session.why}</p><p class="quiet">Trying again by itself.</p>
        <button @click=${() => void begin()}>Try now</button></div>`;
    case "setup":
    case "out":
      return html`<div class="alone">${view?.draw()}</div>${notesTemplate()}`;
    case "in":
      return linked() ? html`<div class="alone">${view?.draw()}</div>` : frame(session.me);
  }
}

function frame(me: Me): TemplateResult {
  const here = address().parts[0] ?? "";
  return html`
    <a class="skip" href="#content" @click=${skip}>To the content</a>
    <nav aria-label="Sections">
      <a class="brand" href="#/">svc</a>
      ${SECTIONS.filter((section) => !section.unlisted && section.roles.includes(me.role)).map(
        (section) => html`<a href="#/${section.path}" aria-current=${section.path === here ? "page" : nothing}>${section.label}</a>`,
      )}
    </nav>
    <header>
      ${searchBox()}
      <span class="gap"></span>
      <span class="live ${live.connection.live ? "on" : ""}" title=${live.connection.live ? "Changes appear as they happen" : "Reconnecting: what is shown may be old"}>
        ${live.connection.live ? "live" : "reconnecting"}</span>
      <a class="me" href="#/account" title="Your account (${me.role})">${me.email}</a>
      <button class="plain" @click=${signOut}>Sign out</button>
    </header>
    ${
      me.impersonation
        ? html`<p class="banner">Support session inside this account: it can look, not act.
      <button @click=${endImpersonation}>End it</button></p>`
        : nothing
    }
    <main id="content" tabindex="-1">${view?.draw()}</main>
    ${notesTemplate()}`;
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

async function signOut(): Promise<void> {
  await attempt(() => api.post("/auth/logout"));
  go("/");
  await begin();
}

async function endImpersonation(): Promise<void> {
  await attempt(() => api.post("/impersonation/end"));
  await begin();
}

addEventListener("hashchange", reopen);
addEventListener("signed-out", () => {
  if (session.is === "in") void begin();
});
setInterval(changed, AGE_MILLISECONDS);
mount(document.getElementById("app") as HTMLElement, draw);
void begin();
