// Renders openapi.json as a page. The usual viewers load code from the network; this page must work offline.

import { key } from "./api.js";
import { tryIt } from "./try_it.js";

const description = await (await fetch("openapi.json")).json();

const element = (name, text = "", ...children) => {
  const made = document.createElement(name);
  made.textContent = text;
  made.append(...children);
  return made;
};

const resolved = (schema) => {
  const path = schema?.$ref?.split("/").slice(1);
  return path ? path.reduce((part, key) => part[key], description) : (schema ?? {});
};

const typeOf = (schema) => {
  const all = schema.anyOf ?? [schema];
  return all
    .map(resolved)
    .filter((one) => one.type !== "null")
    .map((one) => {
      if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
      if (one.const !== undefined) return JSON.stringify(one.const);
      const low = one.minimum ?? one.exclusiveMinimum;
      const most = one.maximum ?? one.exclusiveMaximum;
      const high = Number.isInteger(most) && !Number.isSafeInteger(most) ? "64 bits" : most;
      const range = low === undefined && high === undefined ? "" : ` (${low ?? "…"} to ${high ?? "…"})`;
      const items = one.type === "array" ? ` of ${typeOf(one.items ?? {})}` : "";
      return `${one.type ?? one.title ?? "any"}${items}${range}`;
    })
    .join(" or ");
};

const fieldTable = (properties, required = []) => {
  const table = element("table");
  table.className = "fields";
  for (const [name, schema] of Object.entries(properties)) {
    const head = element("th", "", element("code", name));
    head.scope = "row";
    const needed = required.includes(name) ? "Required. " : "";
    const standard = schema.default === undefined || schema.default === null ? "" : ` Default ${JSON.stringify(schema.default)}.`;
    const about = `${needed}${schema.description ?? ""}${standard}`;
    table.append(element("tr", "", head, element("td", typeOf(schema)), element("td", about)));
  }
  return table;
};

// Required fields first, as in the document; what is accepted and ignored comes last and is folded away.
const bodyFields = (properties, required) => {
  const ignored = Object.entries(properties).filter(([, schema]) => schema.deprecated);
  const others = Object.entries(properties).filter(([, schema]) => !schema.deprecated);
  const shown = [fieldTable(Object.fromEntries(others), required)];
  if (ignored.length) {
    const details = element("details", "", element("summary", `Accepted and ignored (${ignored.length})`));
    details.className = "ignored";
    details.append(fieldTable(Object.fromEntries(ignored)));
    shown.push(details);
  }
  return shown;
};

const entry = (method, path, operation) => {
  const card = element("section");
  card.className = "card";
  card.id = operation.operationId;
  card.append(element("h2", "", element("code", `${method.toUpperCase()} ${path}`)));
  card.append(element("p", operation.description ?? operation.summary ?? ""));
  for (const [media, body] of Object.entries(operation.requestBody?.content ?? {})) {
    const schema = resolved(body.schema);
    card.append(element("h3", `Body, ${media}`), ...bodyFields(schema.properties ?? {}, schema.required));
  }
  card.append(element("h3", "Responses"));
  const answers = Object.entries(operation.responses ?? {}).map(([status, answer]) => [status, { description: answer.description }]);
  const table = fieldTable(Object.fromEntries(answers));
  for (const row of table.rows) row.cells[1].remove(); // a status has no type
  card.append(table);
  const bodies = operation.requestBody?.content ?? {};
  const schema = resolved(bodies["application/json"]?.schema);
  // The playground uploads files.
  if (Object.keys(bodies).every((media) => media === "application/json"))
    card.append(tryIt(method, path, operation.requestBody ? (schema.examples?.[0] ?? {}) : null));
  return card;
};

const keyField = document.getElementById("key");
keyField.value = key.get();
keyField.addEventListener("input", () => key.set(keyField.value.trim()));
document.getElementById("version").textContent = description.info.version;
document.getElementById("about").textContent = description.info.description;
const entries = document.getElementById("entries");
const contents = document.getElementById("contents");
entries.replaceChildren();
for (const [path, methods] of Object.entries(description.paths)) {
  for (const [method, operation] of Object.entries(methods)) {
    entries.append(entry(method, path, operation));
    const link = element("a", `${method.toUpperCase()} ${path}`);
    link.href = `#${operation.operationId}`;
    contents.append(link);
  }
}
const live = element("a", "WS /v1/audio/speech/stream");
live.href = "#websocket";
contents.append(live);
