/** The screen page: noVNC on the relay's websocket. */
import RFB from "@novnc/novnc";
import { clipboardText, run } from "./frame";

const place = document.getElementById("console") as HTMLElement;
const SHIFT = 0xffe1;
let screen: RFB | null = null;

run(
  "vnc",
  place,
  (socket) => {
    screen?.disconnect();
    place.replaceChildren();
    screen = new RFB(place, socket, { shared: true });
    screen.scaleViewport = true;
    screen.background = "transparent";
    screen.showDotCursor = true;
  },
  [
    { label: "Ctrl-Alt-Del", title: "Send Ctrl-Alt-Del to the machine", run: () => screen?.sendCtrlAltDel() },
    { label: "Type clipboard", title: "Type the clipboard's text into the machine, key by key", run: () => void type() },
  ],
  () => screen?.focus(),
);

/**
 * Keysyms of printable Latin-1 are their code points; of the rest, 0x01000000 above them; Return and Tab have their own.
 * QEMU takes a keysym for the key it is on, so a character above another one wants Shift (of a US keyboard) as well.
 */
async function type(): Promise<void> {
  for (const character of await clipboardText()) {
    const code = character.codePointAt(0) as number;
    if (character === "\r") continue;
    const keysym = character === "\n" ? 0xff0d : character === "\t" ? 0xff09 : code < 0x100 ? code : 0x01000000 + code;
    const shifted = /[A-Z~!@#$%^&*()_+{}|:"<>?]/.test(character);
    if (shifted) screen?.sendKey(SHIFT, "ShiftLeft", true);
    screen?.sendKey(keysym, "");
    if (shifted) screen?.sendKey(SHIFT, "ShiftLeft", false);
  }
  screen?.focus();
}
