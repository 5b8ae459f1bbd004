/**
 * A console that stays: a ticket, a websocket opened with it, and when that ends a new ticket, for a spent one opens
 * nothing. The wait between attempts grows; the machine being off is no reason to give up, being signed out is.
 */
import { api, type ApiError, failureOf } from "../../shared/api";

export type ConsoleKind = "vnc" | "serial";

export type State = { is: "connecting" } | { is: "open" } | { is: "waiting"; why: string } | { is: "ended"; why: string; signIn: boolean };

interface ConsoleTicket {
  url: string;
}

const WAITS_SECONDS = [1, 2, 4, 8, 15];
const SETTLED_MILLISECONDS = 5000;
const MACHINE_GONE = 4404;

export class Connection {
  private attempt = 0;
  private timer: number | undefined;
  private socket: WebSocket | null = null;

  /** `attach` is given every new socket, before it is open; `report` every change of state. */
  constructor(
    private readonly machine: string,
    private readonly kind: ConsoleKind,
    private readonly attach: (socket: WebSocket) => void,
    private readonly report: (state: State) => void,
  ) {}

  async connect(): Promise<void> {
    clearTimeout(this.timer);
    if (this.socket) return;
    this.report({ is: "connecting" });
    let ticket: ConsoleTicket;
    try {
      ticket = await api.post<ConsoleTicket>(`/vms/${this.machine}/console`, { kind: this.kind });
    } catch (thrown) {
      const error = failureOf(thrown);
      this.refused(error);
      return;
    }
    const socket = new WebSocket(new URL(ticket.url, location.href.replace(/^http/, "ws")));
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    let settled: number | undefined;
    socket.addEventListener("open", () => {
      this.report({ is: "open" });
      settled = window.setTimeout(() => (this.attempt = 0), SETTLED_MILLISECONDS);
    });
    socket.addEventListener("close", (event) => {
      clearTimeout(settled);
      this.socket = null;
      if (event.code === MACHINE_GONE) this.report({ is: "ended", why: event.reason, signIn: false });
      else this.wait(event.reason || "The connection was lost.");
    });
    this.attach(socket);
  }

  private refused(error: ApiError): void {
    if (error.status === 401) this.report({ is: "ended", why: "You are signed out.", signIn: true });
    else if (error.status === 403 || error.status === 404) this.report({ is: "ended", why: error.message, signIn: false });
    else this.wait(error.message);
  }

  private wait(why: string): void {
    const seconds = WAITS_SECONDS[Math.min(this.attempt++, WAITS_SECONDS.length - 1)] ?? 15;
    this.report({ is: "waiting", why });
    this.timer = window.setTimeout(() => void this.connect(), seconds * 1000);
  }
}
