/** A dashboard: who is signed in, the frame around every view, and which view the address names. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api, failureOf } from "./api";
import { connection } from "./changes";
import { address, changed, go, mount, type View } from "./page";
import { attempt, notesTemplate, type Fragment } from "./ui";

/** Who is signed in, as far as every dashboard needs it. */
export interface Person {
  id: string;
  email: string;
  role: string;
  impersonation?: unknown;
}

export interface Section<Me extends Person> {
  path: string;
  label: string;
  roles: readonly Me["role"][];
  /** Who may open a page of one of them, where that is more than who sees the list. */
  rolesOfOne?: readonly Me["role"][];
  /** It is led to from elsewhere than the list of sections. */
  unlisted?: boolean;
  /** A heading above it in the list of sections. */
  under?: string;
  /** `rest`: what the address has behind the section's own path. */
  open: (me: Me, rest: string[]) => View;
}

export interface Application<Me extends Person> {
  sections: Section<Me>[];
  /** Views that a link in a mail opens, signed in or not. */
  linked: ReadonlyMap<string, (start: () => void) => View>;
  /** The view of a signed-out visitor; `start` looks again who is signed in. */
  signedOut: (start: () => void) => Promise<View>;
  /** The first part of the header. */
  header: () => Fragment;
  live: { start(): void; stop(): void };
  /** What `live` and its opposite mean, for who points at them. */
  liveMeans: string;
}

type Session<Me> = { is: "loading" } | { is: "unreachable"; why: string } | { is: "out"; view: View } | { is: "in"; me: Me };

/** "2 minutes ago" is true for so long without an event. */
const AGE_MILLISECONDS = 20_000;
const RETRY_MILLISECONDS = 3000;

export function run<Me extends Person>(application: Application<Me>): void {
  let session: Session<Me> = { is: "loading" };
  let retry: number | undefined;
  /** The last look at who is signed in, while it goes on. */
  let looking: Promise<Session<Me>> | null = null;
  let view: View | null = null;
  let opened = "";

  /**
   * Learn who is signed in, and show what that means. Only the last look counts: an answer from before a sign-in, or a
   * second one after a sign-out, would replace a sign-in form that somebody is filling in.
   */
  async function start(): Promise<void> {
    const mine = look();
    looking = mine;
    try {
      const found = await mine;
      if (looking !== mine) return;
      session = found;
    } finally {
      if (looking === mine) looking = null;
    }
    if (session.is === "in") application.live.start();
    else application.live.stop();
    clearTimeout(retry);
    if (session.is === "unreachable") retry = window.setTimeout(() => void start(), RETRY_MILLISECONDS);
    reopen();
  }

  async function look(): Promise<Session<Me>> {
    try {
      return { is: "in", me: await api.get<Me>("/me") };
    } catch (thrown) {
      const error = failureOf(thrown);
      return error.status === 401 ? await signedOut() : { is: "unreachable", why: error.message };
    }
  }

  async function signedOut(): Promise<Session<Me>> {
    try {
      return { is: "out", view: await application.signedOut(() => void start()) };
    } catch (thrown) {
      const error = failureOf(thrown);
      return { is: "unreachable", why: error.message };
    }
  }

  /** Show the view that the address names. The same view, seen by the same person, keeps what it has loaded. */
  function reopen(): void {
    const { parts } = address();
    const who = session.is === "in" ? session.me.id : session.is;
    const name = linked() ? (parts[0] ?? "") : session.is === "in" ? [who, ...parts].join("/") : who;
    const kept = view && session.is === "in" && !linked() && opened.startsWith(`${who}/`) && view.follow?.(parts);
    if (kept) opened = name;
    else if (!view || name !== opened || (session.is === "out" && !linked())) {
      view?.dispose?.();
      opened = name;
      view = open(parts);
      document.querySelector("main")?.scrollTo(0, 0);
    }
    changed();
    queueMicrotask(showSection);
  }

  /** On a narrow screen the sections are one row, of which a part is seen. */
  function showSection(): void {
    document.querySelector('nav [aria-current="page"]')?.scrollIntoView({ block: "nearest", inline: "center" });
  }

  function linked(): boolean {
    return (session.is === "in" || session.is === "out") && application.linked.has(address().parts[0] ?? "");
  }

  function open([path = "", ...rest]: string[]): View | null {
    if (linked()) return application.linked.get(path)?.(() => void start()) ?? null;
    switch (session.is) {
      case "out":
        return session.view;
      case "in": {
        const { me } = session;
        const section = application.sections.find(
          (candidate) => candidate.path === path && ((rest.length && candidate.rolesOfOne) || candidate.roles).includes(me.role),
        );
        return section ? section.open(me, rest) : { title: "Not here", draw: () => html`<h1>There is no such page</h1>` };
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
        return html`<div class="alone"><p>${session.why}</p><p class="quiet">Retrying automatically.</p>
        <button @click=${() => void start()}>Try now</button></div>`;
      case "out":
        return html`<div class="alone">${view?.draw()}</div>${notesTemplate()}`;
      case "in":
        return linked() ? html`<div class="alone">${view?.draw()}</div>` : frame(session.me);
    }
  }

  function frame(me: Me): TemplateResult {
    const here = address().parts[0] ?? "";
    const { live } = connection;
    return html`
    <a class="skip" href="#content" @click=${skip}>To the content</a>
    <nav aria-label="Sections">
      <a class="brand" href="#/">svc</a>
      ${application.sections
        .filter((section) => !section.unlisted && section.roles.includes(me.role))
        .map(
          (section) => html`${section.under ? html`<h2>${section.under}</h2>` : nothing}
        <a href="#/${section.path}" aria-current=${section.path === here ? "page" : nothing}>${section.label}</a>`,
        )}
    </nav>
    <header>
      ${application.header()}
      <span class="gap"></span>
      <span class="live ${live ? "on" : ""}" title=${live ? application.liveMeans : "Reconnecting: what is shown may be old"}>
        ${live ? "live" : "reconnecting"}</span>
      <a class="me" href="#/account" title="Your account (${me.role})">${me.email}</a>
      <button class="plain" @click=${signOut}>Sign out</button>
    </header>
    ${
      me.impersonation
        ? html`<p class="banner">Impersonation of this account: read-only.
      <button @click=${endImpersonation}>End impersonation</button></p>`
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
    await start();
    go("/");
  }

  async function endImpersonation(): Promise<void> {
    await attempt(() => api.post("/impersonation/end"));
    await start();
  }

  addEventListener("hashchange", reopen);
  addEventListener("signed-out", () => {
    if (session.is === "in" && !looking) void start();
  });
  setInterval(changed, AGE_MILLISECONDS);
  mount(document.getElementById("app") as HTMLElement, draw);
  void start();
}
