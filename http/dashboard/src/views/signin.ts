/** The two pages before one is signed in: first-run setup with the installer's token, and sign-in. */
import { html, nothing } from "lit-html";
import { api, ApiError } from "../api";
import { address, changed, type View } from "../page";
import { failure, inputs, valuesOf, type Field } from "../ui";

export function signInView(done: () => void): View {
  return entry(
    "Sign in",
    "Sign in",
    nothing,
    [
      { name: "email", label: "Email", kind: "email", required: true, autocomplete: "username" },
      { name: "password", label: "Password", kind: "password", required: true, autocomplete: "current-password" },
    ],
    "/auth/login",
    done,
  );
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
      {
        name: "password",
        label: "Password",
        kind: "password",
        required: true,
        autocomplete: "new-password",
        hint: "12 to 128 characters, three of: lowercase, uppercase, digits, symbols",
      },
    ],
    "/setup",
    done,
  );
}

function entry(title: string, action: string, text: unknown, fields: Field[], path: string, done: () => void): View {
  let error: ApiError | null = null;
  let busy = false;
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    busy = true;
    error = null;
    changed();
    try {
      await api.post(path, valuesOf(event.target as HTMLFormElement));
      done();
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      error = problem;
    } finally {
      busy = false;
      changed();
    }
  };
  return {
    title,
    draw: () => html`<form class="entry" @submit=${submit}>
      <h1>${title}</h1>
      ${text}
      ${inputs(fields)}
      ${failure(error)}
      <button class="primary" ?disabled=${busy}>${action}</button>
    </form>`,
  };
}
