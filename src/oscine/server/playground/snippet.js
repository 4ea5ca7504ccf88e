// The current request as a program: curl, Python (standard library) or JavaScript (Node). Each writes an audio file.
// The key is read from the environment, so that a snippet can be shown to others.

import { requestJson } from "./api.js";

const KEY_VARIABLE = "OSCINE_API_KEY";

// {url, fields, format, file, needsKey, clip, clipType}: `clip` is a file's name, "" without one.
export const SNIPPETS = { curl, python, javascript };

function curl({ url, fields, format, file, needsKey, clip, clipType }) {
  const body = indented({ ...fields, response_format: format }, "    ", "  ");
  const lines = [
    `curl ${quoted(url)} --fail --output ${quoted(file)}`,
    `  --header 'Content-Type: application/json'`,
    ...(needsKey ? [`  --header "Authorization: Bearer $${KEY_VARIABLE}"`] : []),
  ];
  if (!clip) return `${[...lines, `  --data ${quoted(body)}`].join(" \\\n")}\n`;
  // The clip goes through a pipe: it is too long for an argument.
  const [start, end] = withClip(body, `data:${clipType};base64,`);
  return [
    `{ printf %s ${quoted(start)}; base64 < ${quoted(clip)} | tr -d '\\n'; printf %s ${quoted(end)}; } |`,
    `${[...lines, "  --data @-"].join(" \\\n")}\n`,
  ].join("\n");
}

function python({ url, fields, format, file, needsKey, clip, clipType }) {
  const body = indented({ ...fields, response_format: format }, "    ");
  return [
    ...(clip ? ["import base64"] : []),
    "import json",
    ...(needsKey ? ["import os"] : []),
    "import urllib.request",
    "",
    `body = ${body}`,
    ...(clip
      ? [
          `with open(${JSON.stringify(clip)}, "rb") as clip:`,
          `    body["ref_audio"] = "data:${clipType};base64," + base64.b64encode(clip.read()).decode()`,
        ]
      : []),
    `headers = {"Content-Type": "application/json"}`,
    ...(needsKey ? [`headers["Authorization"] = "Bearer " + os.environ["${KEY_VARIABLE}"]`] : []),
    `url = ${JSON.stringify(url)}`,
    "request = urllib.request.Request(url, json.dumps(body).encode(), headers)",
    `with urllib.request.urlopen(request) as response, open(${JSON.stringify(file)}, "wb") as audio:`,
    "    while chunk := response.read1():  # audio arrives while it is generated",
    "        audio.write(chunk)",
    "",
  ].join("\n");
}

function javascript({ url, fields, format, file, needsKey, clip, clipType }) {
  const { seed, ...rest } = fields;
  const safe = !seed || Number.isSafeInteger(Number(seed));
  const body = indented({ ...(safe ? fields : rest), response_format: format }, "  ");
  const json = safe ? "JSON.stringify(body)" : `JSON.stringify(body).replace(/}$/, ${JSON.stringify(`,"seed":${seed}}`)})`;
  return [
    "// Node 18 or newer: save as speech.mjs, then run: node speech.mjs",
    `import { ${clip ? "readFile, " : ""}writeFile } from "node:fs/promises";`,
    "",
    `const body = ${body};`,
    ...(clip
      ? [
          `const clip = await readFile(${JSON.stringify(clip)});`,
          `body.ref_audio = "data:${clipType};base64," + clip.toString("base64");`,
        ]
      : []),
    `const headers = { "Content-Type": "application/json" };`,
    ...(needsKey ? [`headers.Authorization = "Bearer " + process.env.${KEY_VARIABLE};`] : []),
    ...(safe ? [] : ["// The seed is added as text: it has more digits than a JavaScript number keeps."]),
    `const url = ${JSON.stringify(url)};`,
    `const response = await fetch(url, { method: "POST", headers, body: ${json} });`,
    "if (!response.ok) throw new Error(await response.text());",
    `await writeFile(${JSON.stringify(file)}, Buffer.from(await response.arrayBuffer()));`,
    "",
  ].join("\n");
}

// One field per line. JSON is also a Python and a JavaScript literal here: no value is true, false or null.
function indented(fields, space, endSpace = "") {
  const lines = Object.entries(fields).map(([name, value]) => requestJson({ [name]: value }).slice(1, -1));
  return `{\n${lines.map((line) => `${space}${line.replace(/^("[^"]*"):/, "$1: ")}`).join(",\n")}\n${endSpace}}`;
}

function withClip(body, prefix) {
  return [`${body.replace(/\n *}$/, "")},\n    "ref_audio": "${prefix}`, `"\n  }`];
}

// For a POSIX shell: nothing has a meaning between single quotes but the quote itself.
function quoted(text) {
  return /^[\w./:-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}
