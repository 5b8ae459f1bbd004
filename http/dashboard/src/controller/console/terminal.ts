/** The serial page: xterm.js on the relay's websocket, bytes as they are both ways. */
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import { clipboardText, run } from "./frame";

const place = document.getElementById("console") as HTMLElement;
const terminal = new Terminal({
  cursorBlink: true,
  fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", Menlo, Consolas, monospace',
  fontSize: 14,
  scrollback: 10_000,
  screenReaderMode: matchMedia("(forced-colors: active)").matches,
  theme: { background: "#101418", foreground: "#d8dee6", cursor: "#8fb4ff", selectionBackground: "#2f4f86" },
});
const fit = new FitAddon();
const encoder = new TextEncoder();
let socket: WebSocket | null = null;
/** A message larger than the relay takes would end the console. */
const MESSAGE_BYTES = 64 * 1024;

terminal.loadAddon(fit);
terminal.open(place);
fit.fit();
new ResizeObserver(() => fit.fit()).observe(place);
terminal.onData((text) => send(encoder.encode(text)));
terminal.onBinary((text) => send(Uint8Array.from(text, (character) => character.charCodeAt(0))));

run(
  "serial",
  place,
  (opened) => {
    socket = opened;
    opened.addEventListener("message", (event: MessageEvent<ArrayBuffer>) => terminal.write(new Uint8Array(event.data)));
  },
  [{ label: "Paste", title: "Send the clipboard's text to the machine (or Ctrl-Shift-V)", run: () => void paste() }],
  () => terminal.focus(),
);

function send(data: Uint8Array<ArrayBuffer>): void {
  for (let start = 0; start < data.length && socket?.readyState === WebSocket.OPEN; start += MESSAGE_BYTES) {
    socket.send(data.subarray(start, start + MESSAGE_BYTES));
  }
}

async function paste(): Promise<void> {
  terminal.paste(await clipboardText());
  terminal.focus();
}
