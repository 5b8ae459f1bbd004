/** What the viewer of a site may do with it: the service's own answer, by the names of operations. */
import { api } from "../shared/api";
import { Resource } from "../shared/resource";
import type { Me, SiteOperations } from "./model";
import type { OperationName } from "./operations";

/** `may`: whether one of the operations is allowed. A page offers what is, and the service checks again. */
export interface Viewer {
  me: Me;
  may(...operations: OperationName[]): boolean;
}

export interface SiteRights extends Viewer {
  /** Whether there is an answer yet; until then nothing is allowed. */
  readonly known: boolean;
  readonly error: Resource<SiteOperations>["error"];
  dispose(): void;
}

export function siteRights(me: Me, id: string): SiteRights {
  const answer = new Resource<SiteOperations>((signal) => api.get(`/sites/${id}/operations`, {}, signal), ["site"]);
  return {
    me,
    may: (...operations) => operations.some((operation) => answer.value?.operations.includes(operation)),
    get known() {
      return answer.value !== null;
    },
    get error() {
      return answer.error;
    },
    dispose: () => answer.dispose(),
  };
}
