/** The API under /api/v1, called as everybody else calls it. An answer outside 2xx becomes an `ApiError`. */

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly hint: string | null,
  ) {
    super(message);
  }
}

export interface Page<T> {
  items: T[];
  total: number;
  page: number;
  pages: number;
}

/** What a view shows of anything that was thrown: what is no answer of the service is a fault of the page's own. */
export function failureOf(problem: unknown): ApiError {
  if (problem instanceof ApiError) return problem;
  console.error(problem);
  return new ApiError(0, "internal", "The page failed.", "Load it again; the browser's console says more.");
}

const READ_ATTEMPTS = 3;
const RETRY_MILLISECONDS = 400;

type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
export type Parameters = Record<string, string | number | boolean | null | undefined>;

async function call<T>(method: Method, path: string, body?: unknown, signal?: AbortSignal): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", "X-Service-Request": "1" };
  const request: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    request.body = JSON.stringify(body);
  }
  if (signal) request.signal = signal;
  const [response, text] = await reach(`/api/v1${path}`, request, method === "GET" ? READ_ATTEMPTS : 1);
  tell(method, response.status);
  return answered<T>(response.status, response.headers.get("Content-Type"), text);
}

function answered<T>(status: number, type: string | null, text: string): T {
  const json = (type ?? "").includes("json") && text ? parsed(text) : null;
  if (status >= 200 && status < 300) return json as T;
  const failure = json?.error ?? {};
  throw new ApiError(status, failure.code ?? "internal", failure.message ?? `The service answered ${status}.`, failure.hint ?? null);
}

function parsed(text: string) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ApiError(0, "unavailable", "The service's answer cannot be read.", "It may be restarting.");
  }
}

/** Send a file as the whole body. `sent` hears how many bytes have gone, which fetch does not tell. */
async function putFile<T>(path: string, file: File, sent: (bytes: number) => void): Promise<T> {
  const request = new XMLHttpRequest();
  request.open("PUT", `/api/v1${path}`);
  request.setRequestHeader("Accept", "application/json");
  request.setRequestHeader("Content-Type", "application/octet-stream");
  request.setRequestHeader("X-Service-Request", "1");
  request.upload.addEventListener("progress", (event) => sent(event.loaded));
  await new Promise((resolve) => {
    request.addEventListener("loadend", resolve);
    request.send(file);
  });
  tell("PUT", request.status);
  if (!request.status) throw new ApiError(0, "unavailable", "The file was not sent: the connection was lost.", "Send it again.");
  return answered<T>(request.status, request.getResponseHeader("Content-Type"), request.responseText);
}

/**
 * A read that got no whole answer (a network that changed, a service that restarts) is asked again; an order never is. A
 * connection may break off in the midst of the body, too. Raises nothing but `ApiError`, and what ends an aborted request.
 */
async function reach(url: string, request: RequestInit, attempts: number): Promise<[Response, string]> {
  for (let attempt = 1; ; attempt++) {
    let answer: Response | null = null;
    try {
      answer = await fetch(url, request);
      return [answer, await answer.text()];
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      if (attempt >= attempts) {
        tell(request.method as Method, 0);
        const hint = answer && request.method !== "GET" ? "The request may have been carried out: check first." : "It may be restarting.";
        throw new ApiError(0, "unavailable", "The service cannot be reached.", hint);
      }
      await new Promise((resolve) => setTimeout(resolve, attempt * RETRY_MILLISECONDS));
    }
  }
}

/** For what follows how the service does, and what the page changes. `status` 0: there was no answer. */
function tell(method: Method, status: number): void {
  dispatchEvent(new CustomEvent("answered", { detail: { method, status } }));
}

export const api = {
  get: <T>(path: string, query: Parameters = {}, signal?: AbortSignal) => call<T>("GET", path + search(query), undefined, signal),
  post: <T>(path: string, body: unknown = {}) => call<T>("POST", path, body),
  put: <T>(path: string, body: unknown) => call<T>("PUT", path, body),
  putFile,
  patch: <T>(path: string, body: unknown) => call<T>("PATCH", path, body),
  delete: <T>(path: string, body?: unknown) => call<T>("DELETE", path, body),
};

/** The first page of a list: as many as one chooses from. */
export async function firstOf<T>(path: string, query: Parameters = {}): Promise<T[]> {
  return (await api.get<Page<T>>(path, { page_size: 200, ...query })).items;
}

/** A whole list, page by page: where what is left out would be taken for unwanted. */
export async function everyOf<T>(path: string, query: Parameters = {}): Promise<T[]> {
  const found: T[] = [];
  for (let page = 1, pages = 1; page <= pages; page++) {
    const answer = await api.get<Page<T>>(path, { page_size: 200, page, ...query });
    found.push(...answer.items);
    pages = answer.pages;
  }
  return found;
}

function search(query: Parameters): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}` : "";
}
