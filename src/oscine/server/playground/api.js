// HTTP requests to the server: addresses, the API key, and errors with the server's message.

const KEY = "oscine.key";

// sessionStorage: the key is gone when the tab is closed.
export const key = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

export class ApiError extends Error {
  constructor(message, { status = 0, code = "", param = "", retryAfterS = null, requestId = "" } = {}) {
    super(message);
    Object.assign(this, { status, code, param, retryAfterS, requestId });
  }
}

// Relative to the page: a proxy may serve it under any path.
export function address(path) {
  return new URL(path, document.baseURI);
}

export async function call(path, { method = "GET", body, json, signal } = {}) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (json !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address(path), { method, headers, body: json ?? body, signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it running?");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  const text = await answer.text();
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {
    // The answer of a proxy, not of our server.
  }
  return new ApiError(error.message ?? `The server answered ${answer.status} ${answer.statusText}`.trim(), {
    status: answer.status,
    code: error.code ?? "",
    param: error.param ?? "",
    retryAfterS: retryAfterS(answer.headers.get("retry-after")),
    requestId: answer.headers.get("x-request-id") ?? "",
  });
}

function retryAfterS(header) {
  const seconds = Number.parseFloat(header ?? "");
  return Number.isFinite(seconds) ? Math.max(seconds, 0) : null;
}

// The seed is written as digits: a JavaScript number does not hold 64 bits.
export function requestJson({ seed, ...fields }) {
  const json = JSON.stringify(fields);
  return seed ? `${json.slice(0, -1)}${json === "{}" ? "" : ","}"seed":${BigInt(seed)}}` : json;
}

export function checkSeed(seed) {
  if (seed === "" || (/^\d{1,20}$/.test(seed) && BigInt(seed) < 2n ** 64n)) return;
  const message = `The seed must be a whole number from 0 to 2^64 - 1, not "${seed}". Leave it empty for a random one.`;
  throw new ApiError(message, { param: "seed" });
}
