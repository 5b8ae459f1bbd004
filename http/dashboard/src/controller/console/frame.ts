/** What both console pages have around the console: a bar with the machine's name and its buttons, and a notice above. */
import { html, nothing, render, type TemplateResult } from "lit-html";
import { api } from "../../shared/api";
import { Connection, type ConsoleKind, type State } from "./connection";

interface Machine {
  id: string;
  name: string;
}

interface Action {
  label: string;
  title: string;
  run: () => void;
}

/** Runs the page: `attach` shows a new socket in `place`, `actions` are the console's own buttons. */
export function run(
  kind: ConsoleKind,
  place: HTMLElement,
  attach: (socket: WebSocket) => void,
  actions: Action[],
  focus: () => void,
): void {
  const id = decodeURIComponent(location.pathname.split("/").filter(Boolean).at(-1) ?? "");
  const bar = document.createElement("header");
  const notice = document.createElement("div");
  notice.className = "notice";
  notice.setAttribute("role", "status");
  place.before(bar);
  place.after(notice);
  let name = "";
  let state: State = { is: "connecting" };

  const draw = () => {
    document.title = name ? `${name} · ${kind === "vnc" ? "screen" : "serial"}` : "Console";
    render(barTemplate(id, name, kind, state, actions), bar);
    render(
      noticeTemplate(state, () => void connection.connect()),
      notice,
    );
    notice.hidden = state.is === "open";
  };
  const connection = new Connection(id, kind, attach, (next) => {
    state = next;
    draw();
    if (next.is === "open") focus();
  });
  draw();
  void connection.connect();
  api.get<Machine>(`/vms/${encodeURIComponent(id)}`).then(
    (machine) => {
      name = machine.name;
      draw();
    },
    () => {
      // The notice already says why: the ticket is refused for the same reason.
    },
  );
}

/** What the clipboard holds; nothing, said to the person, when the browser keeps it from this page. */
export async function clipboardText(): Promise<string> {
  try {
    return await navigator.clipboard.readText();
  } catch (error) {
    if (!(error instanceof DOMException)) throw error;
    alert("The browser does not let this page read the clipboard. Allow it next to the address bar, then try again.");
    return "";
  }
}

function barTemplate(id: string, name: string, kind: ConsoleKind, state: State, actions: Action[]): TemplateResult {
  const other = kind === "vnc" ? "serial" : "vnc";
  return html`
    <a class="back" href="/#/machines/${id}" title="Back to the machine">${name || "machine"}</a>
    <span class="state ${state.is}">${STATE_WORDS[state.is]}</span>
    <span class="gap"></span>
    ${actions.map((action) => html`<button title=${action.title} ?disabled=${state.is !== "open"} @click=${action.run}>${action.label}</button>`)}
    <button title="Fill the whole screen" @click=${fullScreen}>Full screen</button>
    <a class="button" href="?kind=${other}">${other === "vnc" ? "Screen" : "Serial"}</a>
  `;
}

function noticeTemplate(state: State, reconnect: () => void): TemplateResult | typeof nothing {
  switch (state.is) {
    case "open":
      return nothing;
    case "connecting":
      return html`<p>Connecting…</p>`;
    case "waiting":
      return html`<p>${state.why}</p>
        <p class="quiet">Reconnecting automatically.</p>
        <button @click=${reconnect}>Reconnect now</button>`;
    case "ended":
      return html`<p>${state.why}</p>
        ${state.signIn ? html`<a class="button" href="/">Sign in</a>` : html`<a class="button" href="/#/machines">To the machines</a>`}`;
  }
}

const STATE_WORDS: Record<State["is"], string> = {
  connecting: "connecting",
  open: "connected",
  waiting: "disconnected",
  ended: "ended",
};

function fullScreen(): void {
  if (document.fullscreenElement) void document.exitFullscreen();
  else void document.documentElement.requestFullscreen();
}
