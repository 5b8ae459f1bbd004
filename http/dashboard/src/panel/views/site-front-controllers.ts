/** The scripts of a site that answer for paths without a file. */
import { html, nothing } from "lit-html";
import { order } from "../form";
import type { FrontController, Site } from "../model";
import type { Viewer } from "../rights";
import { rows } from "./rows";
import type { SitePart } from "./site";

export function frontControllers(site: Site, { may }: Viewer): SitePart {
  return rows<FrontController>({
    title: "Front controllers",
    text: "The script answers for what is below the path and is no file. The innermost path applies; for all others /index.php answers.",
    path: `/sites/${site.id}/front-controllers`,
    heads: ["Path", "Script", "Gets", ""],
    buttons: (now) => (may("front_controller.create") ? html`<button @click=${() => add(now)}>Add front controller</button>` : nothing),
    row: (front) => html`<tr><td class="mono">${front.path}</td><td class="mono">${front.php_file}</td><td>${gets(front)}</td>
      <td class="act">${may("front_controller.delete") ? html`<button class="danger" @click=${() => remove(front)}>Delete</button>` : nothing}</td></tr>`,
    empty: "None besides /index.php.",
  });
}

function gets(front: FrontController): string {
  const rest = front.path_info ? "PATH_INFO" : front.parameter ? `?${front.parameter}=` : "the address";
  return front.serves_files ? rest : `${rest}, for existing files too`;
}

function add(site: Site): void {
  order("front_controller.create", {
    title: "Add front controller",
    action: "Add",
    known: { id: site.id },
    wishes: {
      path: { placeholder: "/blog/" },
      php_file: { label: "Script", placeholder: "/blog/index.php" },
      path_info: { label: "Gets the rest of the path as PATH_INFO", hint: "" },
      parameter: { label: "Gets it as this parameter of the query", placeholder: "id", hint: "" },
      serves_files: { label: "Existing files are served themselves", hint: "" },
    },
  });
}

function remove(front: FrontController): void {
  order("front_controller.delete", {
    title: `Delete the front controller of ${front.path}?`,
    text: "Paths without a file are answered by /index.php again.",
    action: "Delete",
    dangerous: true,
    known: { id: front.id },
  });
}
