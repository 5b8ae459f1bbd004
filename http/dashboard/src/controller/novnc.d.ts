declare module "@novnc/novnc" {
  /** The parts of noVNC's client that the screen page uses (its docs/API.md describes them). */
  export default class RFB extends EventTarget {
    constructor(target: HTMLElement, channel: WebSocket, options?: { shared?: boolean });
    scaleViewport: boolean;
    background: string;
    showDotCursor: boolean;
    sendCtrlAltDel(): void;
    sendKey(keysym: number, code: string, down?: boolean): void;
    focus(): void;
    disconnect(): void;
  }
}
