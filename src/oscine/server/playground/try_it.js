// A form below an endpoint of /docs: sends a request and shows the response.

import { address, key } from "./api.js";

// `sample`: a JSON body, or null for an endpoint without one.
export function tryIt(method, path, sample) {
  const pathField = field("Path", "input", path);
  const bodyField = sample === null ? null : field("Body", "textarea", JSON.stringify(sample, null, 2));
  const send = document.createElement("button");
  send.textContent = "Send";
  const result = document.createElement("div");
  result.className = "result";
  result.setAttribute("role", "status");
  const form = document.createElement("form");
  form.append(pathField.label, ...(bodyField ? [bodyField.label] : []), send, result);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    result.replaceChildren("Waiting for the server");
    try {
      result.replaceChildren(...(await exchange(method, pathField.input.value, bodyField?.input.value)));
    } catch (error) {
      result.replaceChildren(`No response: ${error.message}`);
    }
    send.disabled = false;
  });
  const summary = document.createElement("summary");
  summary.textContent = "Try it";
  const details = document.createElement("details");
  details.className = "try";
  details.append(summary, form);
  return details;
}

function field(name, kind, value) {
  const input = document.createElement(kind);
  input.value = value;
  input.spellcheck = false;
  const label = document.createElement("label");
  label.append(name, input);
  return { label, input };
}

// The status line and the body of the response, as elements.
async function exchange(method, path, body) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sentMs = performance.now();
  const answer = await fetch(address(path.replace(/^\//, "")), { method: method.toUpperCase(), headers, body });
  const content = await answer.blob();
  const line = document.createElement("p");
  const took = `${Math.round(performance.now() - sentMs)} ms, ${content.size} bytes`;
  line.textContent = `${answer.status} ${answer.statusText} · ${content.type || "no content"} · ${took}`;
  if (content.type.startsWith("audio/")) {
    const player = document.createElement("audio");
    player.controls = true;
    player.src = URL.createObjectURL(content);
    return [line, player];
  }
  const shown = document.createElement("pre");
  shown.tabIndex = 0; // so that the keyboard can scroll it
  shown.textContent = pretty(await content.text(), content.type);
  return [line, shown];
}

function pretty(text, type) {
  return type.startsWith("application/json") ? JSON.stringify(JSON.parse(text), null, 2) : text;
}
