/**
 * SHA-256 of something that comes piece by piece (FIPS 180-4): the browser's own takes all of it at once, and an upload
 * may be larger than the memory.
 */
const ROUND = new Uint32Array([
  0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be,
  0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174, 0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa,
  0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967, 0x27b70a85,
  0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3,
  0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070, 0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f,
  0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
]);
const BLOCK = 64;

export class Sha256 {
  private readonly state = new Uint32Array([
    0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19,
  ]);
  private readonly words = new Uint32Array(BLOCK);
  private readonly rest = new Uint8Array(BLOCK);
  private kept = 0;
  private length = 0;

  add(bytes: Uint8Array): this {
    this.length += bytes.length;
    let at = 0;
    if (this.kept) {
      at = Math.min(BLOCK - this.kept, bytes.length);
      this.rest.set(bytes.subarray(0, at), this.kept);
      this.kept += at;
      if (this.kept < BLOCK) return this;
      this.block(this.rest, 0);
    }
    for (; at + BLOCK <= bytes.length; at += BLOCK) this.block(bytes, at);
    this.rest.set(bytes.subarray(at));
    this.kept = bytes.length - at;
    return this;
  }

  /** In small hexadecimal. Nothing can be added after. */
  digest(): string {
    const bits = BigInt(this.length) * 8n;
    const ending = new Uint8Array((this.kept < BLOCK - 8 ? BLOCK : 2 * BLOCK) - this.kept);
    ending[0] = 0x80;
    new DataView(ending.buffer).setBigUint64(ending.length - 8, bits);
    this.add(ending);
    return [...this.state].map((word) => word.toString(16).padStart(8, "0")).join("");
  }

  private block(bytes: Uint8Array, from: number): void {
    const { state, words } = this;
    for (let i = 0, at = from; i < 16; i++, at += 4) {
      words[i] = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
    }
    for (let i = 16; i < BLOCK; i++) {
      const near = words[i - 2]!;
      const far = words[i - 15]!;
      const one = turned(near, 17) ^ turned(near, 19) ^ (near >>> 10);
      const zero = turned(far, 7) ^ turned(far, 18) ^ (far >>> 3);
      words[i] = (words[i - 16]! + zero + words[i - 7]! + one) | 0;
    }
    let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
    for (let i = 0; i < BLOCK; i++) {
      const first = (h + (turned(e, 6) ^ turned(e, 11) ^ turned(e, 25)) + ((e & f) ^ (~e & g)) + ROUND[i]! + words[i]!) | 0;
      const second = ((turned(a, 2) ^ turned(a, 13) ^ turned(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + first) | 0;
      d = c;
      c = b;
      b = a;
      a = (first + second) | 0;
    }
    const next = [a, b, c, d, e, f, g, h];
    for (let i = 0; i < 8; i++) state[i] = (state[i]! + next[i]!) | 0;
  }
}

function turned(word: number, by: number): number {
  return (word >>> by) | (word << (32 - by));
}
