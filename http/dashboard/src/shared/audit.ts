/** What is done with the whole audit: it is given to the browser as a file, or compared with its seals. */
import { html, nothing } from "lit-html";
import { api } from "./api";
import { give } from "./download";
import { ask, facts, given, when, type Field, type Fragment, type Values } from "./ui";

interface Part {
  entries: unknown[];
  next_after: number | null;
}

interface Check {
  problem: string | null;
  seals: number;
  rows: number;
  archived_rows: number;
  next_after: number | null;
  newest_digest: string | null;
  sealed_at: string | null;
  unsealed_rows: number;
}

/** `chosen`: the filters of the list. The form shows them, except the one resource that a list may be limited to. */
export function auditButtons(chosen: () => Values = () => ({})): Fragment {
  return html`<button @click=${() => exportEntries(chosen())}>Export</button><button @click=${verify}>Verify</button>`;
}

function exportEntries(chosen: Values): void {
  const field = (name: string, label: string, more: Partial<Field> = {}): Field => ({ name, label, value: chosen[name] ?? "", ...more });
  ask({
    title: "Export the audit log",
    text: "All matching entries, one a line as JSON, oldest first. Empty fields match everything.",
    fields: [
      field("actor", "Who", { placeholder: "an address" }),
      field("operation", "Operation", { placeholder: "by its name" }),
      field("outcome", "Outcome", {
        kind: "select",
        options: [{ value: "", label: "any" }, ...["ok", "denied", "failed"].map((each) => ({ value: each, label: each }))],
      }),
      field("since", "From", { kind: "date" }),
      field("until", "To", { kind: "date" }),
    ],
    action: "Export",
    submit: async (values) => {
      const about = given(chosen, ["target_kind", "target_id"]);
      const query: Record<string, string> = { ...about, ...days(given(values, ["actor", "operation", "outcome", "since", "until"])) };
      const lines: string[] = [];
      for (;;) {
        const part = await api.get<Part>("/audit/export", query);
        lines.push(...part.entries.map((entry) => `${JSON.stringify(entry)}\n`));
        if (part.next_after === null) break;
        query["after"] = String(part.next_after);
      }
      if (!lines.length) return html`<p>No entry matches.</p>`;
      give(new Blob(lines, { type: "application/x-ndjson" }), "audit.jsonl");
      return html`<p>${lines.length === 1 ? "1 entry is" : `${lines.length} entries are`} in <code>audit.jsonl</code>.</p>`;
    },
  });
}

/** Days become the moments at which they start in the viewer's time zone; the last day is included. */
export function days(query: Values): Values {
  const { since, until } = query;
  const moments: Values = {};
  if (since) moments["since"] = new Date(`${since}T00:00`).toISOString();
  if (until) {
    const end = new Date(`${until}T00:00`);
    end.setDate(end.getDate() + 1);
    moments["until"] = end.toISOString();
  }
  return { ...query, ...moments };
}

function verify(): void {
  ask({
    title: "Verify the audit log",
    text: "Every row and every archive is checked against its seal; the first difference is shown.",
    fields: [{ name: "digest", label: "A digest of its log", hint: "stored elsewhere before; it must belong to a seal" }],
    action: "Verify",
    submit: async (values) => {
      let query: Record<string, string> = given(values, ["digest"]);
      const read = { seals: 0, rows: 0, archived_rows: 0 };
      for (;;) {
        const check = await api.get<Check>("/audit/verify", query);
        for (const name of ["seals", "rows", "archived_rows"] as const) read[name] += check[name];
        if (check.next_after === null) return verdict({ ...check, ...read });
        query = { after: String(check.next_after) };
      }
    },
  });
}

function verdict(check: Check): Fragment {
  return html`${
    check.problem === null
      ? html`<p>It is as it was sealed.</p>`
      : html`<p class="failure" role="alert">It is not as it was sealed: ${check.problem}. Compare the rows with a backup of the database.</p>`
  }
  ${facts([
    ["Seals", String(check.seals)],
    ["Rows", `${check.rows}, and ${check.archived_rows} in archives`],
    ["Not sealed yet", String(check.unsealed_rows)],
    ["Last seal", check.sealed_at ? when(check.sealed_at) : "none yet"],
    ["Its digest", check.newest_digest ? html`<code>${check.newest_digest}</code>` : nothing],
  ])}`;
}
