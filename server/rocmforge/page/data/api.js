// The server's API: requests with the user's key, answers, streams and errors.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status; // 0: the server did not answer
  }
}

const KEY = "rocmforge.key";
let key = readStored(KEY) ?? "";

/** The key that is sent with each request; "" = none. */
export const currentKey = () => key;

/** Whether the browser keeps it when the page is closed. */
export const isKeyKept = () => readStored(KEY) !== null;

export function useKey(text, isKept) {
  key = text.trim();
  writeStored(KEY, isKept && key ? key : null);
}

/** Reads what the browser keeps for this page; null if it keeps nothing, or is told not to. */
export function readStored(name) {
  try {
    return localStorage.getItem(name);
  } catch {
    return null;
  }
}

export function writeStored(name, value) {
  try {
    if (value === null) localStorage.removeItem(name);
    else localStorage.setItem(name, value);
  } catch {
    // Without storage it is used until the page is closed.
  }
}

async function ask(path, { body, signal, method } = {}) {
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  // Headers hold bytes: what is not Latin-1 goes as UTF-8, which is what the server compares.
  if (key) headers["X-Api-Key"] = String.fromCharCode(...new TextEncoder().encode(key));
  let answer;
  try {
    answer = await fetch(path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer. Is it running?", 0);
  }
  if (!answer.ok) throw new ApiError(await messageOf(answer), answer.status);
  return answer;
}

async function messageOf(answer) {
  const text = await answer.text();
  try {
    const { error } = JSON.parse(text);
    return error.message;
  } catch {
    return text.slice(0, 300) || `The server answered with status ${answer.status}.`;
  }
}

export const getJson = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();
export const post = async (path) => (await ask(path, { method: "POST" })).json();

/** Yields the events of a streamed answer, until it ends. */
export async function* stream(path, body, signal) {
  const answer = await ask(path, { body, signal });
  let rest = "";
  let isDone = false;
  try {
    for await (const text of texts(answer.body)) {
      const lines = (rest + text).split(/\r?\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (!line.startsWith("data:")) continue; // a comment, or the end of an event
        const data = line.slice(5).trim();
        if (data === "[DONE]") {
          isDone = true;
          continue;
        }
        const event = JSON.parse(data);
        if (event.error) throw new ApiError(event.error.message, answer.status);
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ApiError) throw error;
    throw new ApiError("The connection broke before the answer was complete.", 0);
  }
  if (!isDone) throw new ApiError("The server ended before the answer was complete.", 0);
}

async function* texts(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    yield value;
  }
}
