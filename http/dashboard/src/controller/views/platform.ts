/** What a machine has beneath its system, in words. */
import type { Image } from "../model";

const NAMES: Record<string, string> = { bios: "BIOS", uefi: "UEFI", uefi_secure: "UEFI, Secure Boot", tpm: "TPM 2.0" };

export function named(feature: string): string {
  return NAMES[feature] ?? feature;
}

export function platform(of: Pick<Image, "firmware" | "tpm">): string {
  return of.tpm === "none" ? named(of.firmware) : `${named(of.firmware)}, TPM ${of.tpm}`;
}
