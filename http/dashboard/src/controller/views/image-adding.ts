/** A custom image: what it is, where its file comes from and what its machines have; the file itself, where it is sent from
 * here. */
import { html } from "lit-html";
import { api } from "../../shared/api";
import { changed } from "../../shared/page";
import { ask, attempt, given, givenNumbers, note, type Field, type Fragment, type Values } from "../../shared/ui";
import type { Image } from "../model";
import { named } from "./platform";

const KINDS = [
  { value: "disk", label: "a disk image for machines" },
  { value: "iso", label: "an ISO for CD-ROM drives" },
  { value: "rescue", label: "a rescue system" },
];
const SOURCES = [
  { value: "url", label: "a URL, from which nodes fetch it" },
  { value: "file", label: "a file of this computer, uploaded next" },
];
const SYSTEMS = [
  { value: "linux", label: "Linux or another Unix" },
  { value: "windows", label: "Windows" },
];
const FORMATS = [
  { value: "qcow2", label: "qcow2" },
  { value: "raw", label: "raw" },
];
const SHA512_DIGITS = 128;
const FIRMWARES = ["bios", "uefi", "uefi_secure"].map((each) => ({ value: each, label: named(each) }));
const TPMS = [
  { value: "none", label: "none" },
  { value: "2.0", label: "TPM 2.0, with a UEFI" },
];
/** BIOS and no TPM, but of a Windows a UEFI with Secure Boot and a TPM. */
const BY_SYSTEM = [{ value: "", label: "default of its system" }];

export function addImage(done: () => Promise<void>): void {
  ask({
    title: "Create image",
    wide: true,
    fields,
    action: "Create",
    submit: async (values) => {
      const disk = values["kind"] === "disk";
      const digest = given(values, ["digest"])["digest"];
      await api.post("/images", {
        ...given(values, ["name", "slug", "kind", "os_family", "distribution", "release", "source", "url", "digest"]),
        ...(digest?.length === SHA512_DIGITS ? { digest_algorithm: "sha512" } : {}),
        ...(disk ? given(values, ["login_user", "format", "firmware", "tpm"]) : {}),
        ...(disk ? givenNumbers(values, ["min_disk_gib", "min_memory_mib"]) : {}),
      });
      await done();
      if (values["source"] === "file") note("Now send its file.");
    },
  });
}

function fields(values: Values): Field[] {
  const disk = (values["kind"] ?? "disk") === "disk";
  const fetched = (values["source"] ?? "url") === "url";
  return [
    { name: "kind", label: "It is", kind: "select", options: KINDS },
    { name: "source", label: "Its file comes from", kind: "select", options: SOURCES },
    { name: "name", label: "Name", required: true, placeholder: "Debian 12 with our tools" },
    { name: "slug", label: "Short name", required: true, placeholder: "debian-12-tools", hint: "its name in orders" },
    { name: "distribution", label: "Distribution", required: true, placeholder: "debian" },
    { name: "release", label: "Release", required: true, placeholder: "12" },
    ...(fetched
      ? [
          { name: "url", label: "Address", required: true, placeholder: "https://images.example.com/debian-12.qcow2" },
          { name: "digest", label: "SHA-256 or SHA-512", required: true, hint: "in hex; a file with another digest is refused" },
        ]
      : []),
    { name: "os_family", label: "System", kind: "select", options: SYSTEMS },
    ...(disk ? ofADisk() : []),
  ];
}

function ofADisk(): Field[] {
  return [
    { name: "format", label: "Format", kind: "select", options: FORMATS },
    { name: "login_user", label: "Account of its user", required: true, placeholder: "debian", hint: "who signs in first" },
    { name: "firmware", label: "Firmware", kind: "select", options: [...BY_SYSTEM, ...FIRMWARES] },
    { name: "tpm", label: "TPM", kind: "select", options: [...BY_SYSTEM, ...TPMS] },
    { name: "min_disk_gib", label: "Least disk, GiB", kind: "number", value: "1", least: 1 },
    { name: "min_memory_mib", label: "Least memory, MiB", kind: "number", value: "512", least: 64 },
  ];
}

export function changePlatform(image: Image, done: () => Promise<void>): void {
  ask({
    title: `What machines of ${image.name} have`,
    text: "For machines created from now on; existing machines keep theirs.",
    fields: [
      { name: "firmware", label: "Firmware", kind: "select", value: image.firmware, options: FIRMWARES },
      { name: "tpm", label: "TPM", kind: "select", value: image.tpm, options: TPMS },
    ],
    action: "Save",
    submit: async (values) => {
      await api.patch(`/images/${image.id}`, { firmware: values["firmware"], tpm: values["tpm"] });
      await done();
    },
  });
}

/** Files that are being sent from this page: how much of each, by the image. */
const sending = new Map<string, number>();

/** The choice of a file for an image that has none yet, and how far sending it is. */
export function itsFile(image: Image, done: () => Promise<void>): Fragment {
  const part = sending.get(image.id);
  if (part !== undefined) {
    return html`<progress aria-label="Sending the file of ${image.name}" max="1" .value=${part}></progress> ${Math.floor(part * 100)} %`;
  }
  return html`<label class="button">Send its file<input type="file" hidden @change=${(event: Event) => {
    const input = event.target as HTMLInputElement;
    const file = input.files?.[0];
    input.value = "";
    if (file) void attempt(() => sent(image, file, done), `The file of ${image.name} was created.`);
  }}></label>`;
}

async function sent(image: Image, file: File, done: () => Promise<void>): Promise<void> {
  const show = (bytes: number) => {
    sending.set(image.id, file.size ? bytes / file.size : 1);
    changed();
  };
  show(0);
  try {
    await api.putFile<Image>(`/images/${image.id}/file`, file, show);
  } finally {
    sending.delete(image.id);
    changed();
  }
  await done();
}
