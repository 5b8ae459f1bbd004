/** One's own second factor: whether there is one, setting it up, its recovery codes. */
import { html, nothing, type TemplateResult } from "lit-html";
import { api } from "./api";
import type { Enrolment, RecoveryCodes, SecondFactor } from "./generated";
import type { Person } from "./application";
import { changed, type View } from "./page";
import { Resource } from "./resource";
import { ask, badge, facts, secret, shown, when, type Field, type Fragment } from "./ui";

export const CODE: Field = { name: "code", label: "Code", required: true, autocomplete: "one-time-code" };
const PASSWORD: Field = {
  name: "password",
  label: "Your password",
  kind: "password",
  required: true,
  autocomplete: "current-password",
};

/** The secret of a new authenticator, as a QR code, a link and text. */
export function authenticatorSecret(enrolment: Enrolment): TemplateResult {
  return html`<p>Scan this with your authenticator, open <a href=${enrolment.url}>the link</a> on the device that it is on, or type the
      secret. It is shown only once.</p>
    <img class="qr" src=${enrolment.qr_code} alt="QR code of the secret below">
    ${secret(enrolment.secret)}`;
}

export function recoveryCodes(codes: string[]): TemplateResult {
  return html`<p>Each of these codes signs in once, if you lose the authenticator. They are shown only once: print them, or keep
      them where your passwords are.</p>
    ${secret(codes.join("\n"))}`;
}

export function accountView(me: Person & { name: string }): View {
  const factor = new Resource<SecondFactor>((signal) => api.get("/me/second-factor", {}, signal), ["activity"]);
  let enrolment: Enrolment | null = null;

  const setUp = () =>
    ask({
      title: "Set up a second factor",
      fields: [PASSWORD],
      action: "Continue",
      submit: async (values) => {
        enrolment = await api.post<Enrolment>("/me/second-factor", values);
        changed();
      },
    });
  const confirm = () =>
    ask({
      title: "Confirm the second factor",
      text: "Type the code that the authenticator shows now.",
      fields: [CODE],
      action: "Confirm",
      submit: async (values) => kept(await api.post<RecoveryCodes>("/me/second-factor/confirm", values)),
    });
  const renew = () =>
    ask({
      title: "New recovery codes",
      text: "The previous ones then stop working.",
      fields: [PASSWORD, CODE],
      action: "Create",
      submit: async (values) => kept(await api.post<RecoveryCodes>("/me/second-factor/recovery-codes", values)),
    });
  const disable = () =>
    ask({
      title: "Disable the second factor",
      text: "From then on you sign in with your password only.",
      fields: [PASSWORD, CODE],
      action: "Disable",
      dangerous: true,
      submit: async (values) => {
        await api.post("/me/second-factor/disable", values);
        await factor.load();
      },
    });
  const kept = async (made: RecoveryCodes): Promise<Fragment> => {
    enrolment = null;
    await factor.load();
    return recoveryCodes(made.recovery_codes);
  };
  const section = (state: SecondFactor): Fragment =>
    state.enabled
      ? html`${facts([
          ["Second factor", badge("active")],
          ["Since", when(state.confirmed_at)],
          ["Recovery codes left", String(state.recovery_codes)],
        ])}
        <p><button @click=${renew}>New recovery codes</button>
          ${state.required ? nothing : html`<button class="danger" @click=${disable}>Disable</button>`}</p>`
      : enrolment
        ? html`${authenticatorSecret(enrolment)}<p><button class="primary" @click=${confirm}>Enter code</button></p>`
        : html`<p>You sign in with your password alone. With a second factor you also enter a code of your authenticator, so that a
            stolen password is not enough.</p>
          <p><button class="primary" @click=${setUp}>Set up a second factor</button></p>`;
  return {
    title: "Your account",
    draw: () => html`
      <div class="head"><h1>Your account</h1></div>
      ${facts([
        ["Email", me.email],
        ["Name", me.name],
        ["Role", me.role],
      ])}
      <h2>Signing in</h2>
      ${shown(factor, section)}`,
    dispose: () => factor.dispose(),
  };
}
