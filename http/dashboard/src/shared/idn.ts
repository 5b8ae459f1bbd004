/**
 * Internationalised domain names as people write them: müller.example for xn--mller-kva.example. Which labels are shown
 * in their letters, and why, is in svc/cli/idn.py; tests/support/idn_labels.json is what both show.
 */
const HOST = /(?<![\w.-])(?:[\w*-]+\.)*xn--[a-z0-9-]+(?:\.[\w-]+)*/gi;
const LATIN = /^[a-z0-9\u00df-\u00f6\u00f8-\u0137\u0139-\u0148\u014a-\u017e\u01a1\u01b0\u0219\u021b\u0259\u1e00-\u1ef9-]+$/u;
const ALONE = [
  "Arabic Armenian Bengali Bopomofo Cyrillic Devanagari Ethiopic Georgian Greek Gujarati Gurmukhi Han Hangul Hebrew",
  "Hiragana Kannada Katakana Khmer Lao Malayalam Myanmar Oriya Sinhala Tamil Telugu Thaana Thai Tibetan",
]
  .join(" ")
  .split(" ")
  .map(only);
const TOGETHER = [
  /^[a-z0-9\p{scx=Han}\p{scx=Hiragana}\p{scx=Katakana}-]+$/u,
  /^[a-z0-9\p{scx=Han}\p{scx=Bopomofo}-]+$/u,
  /^[a-z0-9\p{scx=Han}\p{scx=Hangul}-]+$/u,
];
const LIKE_LATIN: [RegExp, RegExp][] = [
  [/^[аысԁеԍһіюјӏорԗԛѕԝхуъьҽпгѵѡ0-9-]+$/u, only("Cyrillic")],
  [/^[αικνρυωηοτγχβ0-9-]+$/u, only("Greek")],
];
/** Next to Latin letters they pass for a slash, a dash or a dot. */
const LIKE_SIGNS = /[a-z].*[ノソゾンヽ丶丿・ー一〇]|[ノソゾンヽ丶丿・ー一〇].*[a-z]/u;

function only(script: string): RegExp {
  return new RegExp(`^[\\p{scx=${script}}0-9-]+$`, "u");
}

/** The text with every host name in it as people write it, where that is safe. */
export function inLetters(text: string): string {
  return text.includes("xn--") ? text.replace(HOST, (host) => spelled(host.split(".")).join(".")) : text;
}

function spelled(labels: string[]): string[] {
  const letters = labels.map((label) => (label.startsWith("xn--") ? (decoded(label) ?? label) : label));
  const top = letters.at(-1) ?? "";
  return labels.map((label, at) => (letters[at] !== undefined && letters[at] !== label && isPlain(letters[at], top) ? letters[at] : label));
}

function isPlain(label: string, top: string): boolean {
  if (LATIN.test(label)) return true;
  if (![...ALONE, ...TOGETHER].some((allowed) => allowed.test(label)) || LIKE_SIGNS.test(label)) return false;
  const passing = LIKE_LATIN.find(([letters]) => letters.test(label));
  return !passing || passing[1].test(top);
}

/** A label in its letters; null for what the browser would not encode as this label again. */
function decoded(label: string): string | null {
  const letters = punycode(label.slice(4));
  try {
    return letters !== null && new URL(`http://${letters}.example`).hostname === `${label}.example` ? letters : null;
  } catch {
    return null;
  }
}

/** RFC 3492, section 6.2, with the parameters of section 5. */
function punycode(text: string): string | null {
  const last = text.lastIndexOf("-");
  const letters = last > 0 ? [...text.slice(0, last)].map((letter) => letter.charCodeAt(0)) : [];
  let code = 128;
  let position = 0;
  let bias = 72;
  for (let at = last > 0 ? last + 1 : 0; at < text.length;) {
    const before = position;
    for (let weight = 1, k = 36; ; k += 36) {
      const digit = "abcdefghijklmnopqrstuvwxyz0123456789".indexOf(text.charAt(at++) || "?");
      if (digit < 0) return null;
      position += digit * weight;
      const threshold = k <= bias ? 1 : k >= bias + 26 ? 26 : k - bias;
      if (digit < threshold) break;
      weight *= 36 - threshold;
    }
    const count = letters.length + 1;
    bias = adapted(position - before, count, before === 0);
    code += Math.floor(position / count);
    position %= count;
    if (code > 0x10ffff) return null;
    letters.splice(position++, 0, code);
  }
  return String.fromCodePoint(...letters);
}

function adapted(delta: number, count: number, first: boolean): number {
  let left = Math.floor(delta / (first ? 700 : 2));
  left += Math.floor(left / count);
  let k = 0;
  for (; left > 455; k += 36) left = Math.floor(left / 35);
  return k + Math.floor((36 * left) / (left + 38));
}
