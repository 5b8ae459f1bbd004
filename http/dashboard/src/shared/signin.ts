/** The pages for who is not signed in: first-run setup with the installer's token, sign-in, and a password by mail. */
import { html, nothing } from "lit-html";
import { api, type ApiError, failureOf } from "./api";
import type { CodeNeeded, LoginResult, SignedInByCode } from "./generated";
import { address, changed, type View } from "./page";
import { failure, inputs, valuesOf, type Field, type Fragment, type Values } from "./ui";
import { authenticatorSecret, CODE, recoveryCodes } from "./second-factor";

const NEW_PASSWORD: Field = {
  name: "password",
  label: "Password",
  kind: "password",
  required: true,
  autocomplete: "new-password",
  hint: "12 to 128 characters, three of: lowercase, uppercase, digits, symbols",
};

export function signInView(sendsMail: boolean, done: () => void): View {
  let step = passwordStep(sendsMail, done, (needed) => {
    step = codeStep(needed, done);
    changed();
  });
  return { title: "Sign in", draw: () => step.draw() };
}

function passwordStep(sendsMail: boolean, done: () => void, needsCode: (needed: CodeNeeded) => void): View {
  return entry(
    "Sign in",
    "Sign in",
    sendsMail ? html`<p class="quiet"><a href="#/forgot-password">I forgot my password</a></p>` : nothing,
    [
      { name: "email", label: "Email", kind: "email", required: true, autocomplete: "username" },
      { name: "password", label: "Password", kind: "password", required: true, autocomplete: "current-password" },
    ],
    async (values) => {
      const answer = await api.post<LoginResult | CodeNeeded>("/auth/login", values);
      if ("pending" in answer) needsCode(answer);
      else done();
    },
  );
}

/** The second step, and the setting up of a second factor where one is required and there is none. */
function codeStep({ pending, enrolment }: CodeNeeded, done: () => void): View {
  return entry(
    "Sign in with a code",
    "Sign in",
    enrolment
      ? html`<p class="quiet">Administrators need a second factor here.</p>${authenticatorSecret(enrolment)}`
      : html`<p class="quiet">Type the code that your authenticator shows, or one of your recovery codes. <a href="#/" @click=${again}>Back</a></p>`,
    [CODE],
    async (values) => {
      const signedIn = await api.post<SignedInByCode>("/auth/code", { pending, ...values });
      if (!signedIn.recovery_codes) {
        done();
        return;
      }
      return html`${recoveryCodes(signedIn.recovery_codes)}<button class="primary" @click=${done}>I have saved them</button>`;
    },
  );
}

function again(event: Event): void {
  event.preventDefault();
  location.reload();
}

export function setupView(done: () => void): View {
  const token = address().query.get("token") ?? "";
  return entry(
    "Set up",
    "Create the administrator",
    html`<p class="quiet">This controller has no administrator yet. The installer printed a one-time setup token.</p>`,
    [
      { name: "token", label: "Setup token", required: true, value: token, placeholder: "svcsetup_…" },
      { name: "name", label: "Your name", required: true, autocomplete: "name" },
      { name: "email", label: "Email", kind: "email", required: true, autocomplete: "username" },
      NEW_PASSWORD,
    ],
    async (values) => {
      await api.post("/setup", values);
      done();
    },
  );
}

export function forgotPasswordView(): View {
  return entry(
    "A new password",
    "Send me a link",
    html`<p class="quiet">If the address belongs to an account, a link to choose a new password is sent there. <a href="#/">Back</a></p>`,
    [{ name: "email", label: "Email", kind: "email", required: true, autocomplete: "username" }],
    async (values) => {
      await api.post("/auth/forgot-password", values);
      return html`<p>If ${values.email} belongs to an account, a link is on its way. It works for an hour.</p><p><a href="#/">To the sign-in</a></p>`;
    },
  );
}

/** Where the links of mail lead. `done` finds out who is signed in afterwards: nobody by the old password. */
export function setPasswordView(done: () => void): View {
  const token = address().query.get("token") ?? "";
  return entry(
    "Choose a password",
    "Set the password",
    html`<p class="quiet">Every browser that is signed in to the account is signed out.</p>`,
    [NEW_PASSWORD],
    async (values) => {
      await api.post("/auth/set-password", { token, ...values });
      history.replaceState(null, "", "#/set-password");
      done();
      return html`<p>Your password is set.</p><p><a href="#/">To the sign-in</a></p>`;
    },
  );
}

/** Where a billing system sends a customer. A click, since what only looks at links must not use this one up. */
export function signInLinkView(done: () => void): View {
  const token = address().query.get("token") ?? "";
  return entry("Sign in", "Sign in", html`<p class="quiet">This link works once.</p>`, [], async () => {
    await api.post("/auth/link", { token });
    history.replaceState(null, "", "#/");
    done();
  });
}

/** A form by itself; what `send` returns is shown in its place. */
function entry(title: string, action: string, text: Fragment, fields: Field[], send: (values: Values) => Promise<Fragment | void>): View {
  let error: ApiError | null = null;
  let result: Fragment | null = null;
  let busy = false;
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    busy = true;
    error = null;
    changed();
    try {
      result = (await send(valuesOf(event.target as HTMLFormElement))) || null;
    } catch (thrown) {
      error = failureOf(thrown);
    } finally {
      busy = false;
      changed();
    }
  };
  return {
    title,
    draw: () =>
      result
        ? html`<div class="entry"><h1>${title}</h1>${result}</div>`
        : html`<form class="entry" @submit=${submit}>
      <h1>${title}</h1>
      ${text}
      ${inputs(fields)}
      ${failure(error)}
      <button class="primary" ?disabled=${busy}>${action}</button>
    </form>`,
  };
}
