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
  const response = await reach(`/api/v1${path}`, request, method === "GET" ? READ_ATTEMPTS : 1);
  tell(method, response.status);
  const text = await response.text();
  const json = (response.headers.get("Content-Type") ?? "").includes("json") && text ? JSON.parse(text) : null;
  if (response.ok) return json as T;
  const failure = json?.error ?? {};
  throw new ApiError(
    response.status,
    failure.code ?? "internal",
    failure.message ?? `The service answered ${response.status}.`,
    failure.hint ?? null,
  );
}

/** A read that got no answer (a network that changed, a service that restarts) is asked again; an order never is. */
async function reach(url: string, request: RequestInit, attempts: number): Promise<Response> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await fetch(url, request);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") throw error;
      if (attempt >= attempts) {
        tell(request.method as Method, 0);
        throw new ApiError(0, "unavailable", "The service cannot be reached.", "It may be restarting.");
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
