// The HTTP API of the member that served this page, and the login, which this tab keeps until it is closed.

const KEY = "login", TIMEOUT_MS = 30000;
let unauthorised = () => {};

export class ApiError extends Error {
  constructor(status, reason) { super(reason); this.status = status; }
}

export const onUnauthorised = (callback) => { unauthorised = callback; };
export const loggedIn = () => sessionStorage.getItem(KEY) !== null;
export const logout = () => sessionStorage.removeItem(KEY);

export async function login(user, password) {
  const secret = btoa(String.fromCharCode(...new TextEncoder().encode(`${user}:${password}`)));
  const answer = await send("GET", "/api/whoami", undefined, secret);
  sessionStorage.setItem(KEY, secret);
  return answer;
}

// Browsers take "." and ".." out of an address, however they are written: the call would go elsewhere.
export function path(...names) {
  for (const name of names) {
    if (name === "." || name === "..") throw new ApiError(0, `a browser cannot address the name "${name}"; use qpidctl`);
  }
  return `/api/${names.map(encodeURIComponent).join("/")}`;
}

export const query = (address, parameters) => `${address}?${new URLSearchParams(parameters)}`;
export const get = (address) => send("GET", address);
export const put = (address, body = {}) => send("PUT", address, body);
export const post = (address, body = {}) => send("POST", address, body);
export const remove = (address) => send("DELETE", address);

async function send(method, address, body, secret = sessionStorage.getItem(KEY)) {
  let answer;
  try {
    answer = await fetch(address, {
      method,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(TIMEOUT_MS),
      headers: { Authorization: `Basic ${secret}`, ...(body === undefined ? {} : { "Content-Type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new ApiError(0, "no answer from this member; it may be stopping, open another member's page");
  }
  const text = await answer.text();
  let content = null;
  try { content = text ? JSON.parse(text) : null; } catch { /* an answer of a proxy on the way */ }
  if (answer.ok) return content;
  if (answer.status === 401 && content?.reason === "Login failed") { logout(); unauthorised(); } // 401 is also: this user may not
  throw new ApiError(answer.status, content?.reason ? reason(content.reason) : `${answer.status} ${answer.statusText}`);
}

// Without the brackets in which Erlang prints strings, and RabbitMQ and so the API, for tools: <<"x">>.
const reason = (given) => (typeof given === "string" ? given.replace(/<<("(?:[^"\\]|\\.)*")>>/g, "$1") : JSON.stringify(given));
