// The current request as a program: curl, Python (standard library) or JavaScript (Node). Each writes an audio file.
// The key is read from the environment, so that a snippet can be shown to others.

import { requestJson } from "./api.js";

const KEY_VARIABLE = "OSCINE_API_KEY";

// {url, fields, format, file, needsKey, clip, clipType}: `clip` is a file's name, "" without one.
export const SNIPPETS = { curl, python, javascript };

// Formats without a length at their start. WAV and FLAC begin with one, which is wrong in a file that is sent while it
// is generated. Python and JavaScript correct that of WAV; otherwise the whole file is requested.
const UNSIZED = ["mp3", "opus", "aac"];

// Whether a program writes the file while the speech is generated.
export function streams(form, format) {
  return UNSIZED.includes(format) || (format === "wav" && form !== "curl");
}

function asked(form, format) {
  const response = { response_format: format };
  return streams(form, format) ? { ...response, stream_format: "audio" } : { ...response, stream: false };
}

function curl({ url, fields, format, file, needsKey, clip, clipType }) {
  const body = indented({ ...fields, ...asked("curl", format) }, "    ", "  ");
  const lines = [
    `curl ${quoted(url)} --fail${streams("curl", format) ? " --no-buffer" : ""} --output ${quoted(file)}`,
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
  const wave = format === "wav"; // the module of this name writes the header, and completes it
  const body = indented({ ...fields, ...asked("python", format), ...(wave ? { response_format: "pcm" } : {}) }, "    ");
  return [
    ...(clip ? ["import base64"] : []),
    "import json",
    ...(needsKey ? ["import os"] : []),
    "import urllib.request",
    ...(wave ? ["import wave"] : []),
    "",
    `body = ${body.replace(/false\n}$/, "False\n}")}`,
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
    `with urllib.request.urlopen(request) as response, ${wave ? "wave." : ""}open(${JSON.stringify(file)}, "wb") as audio:`,
    ...pythonWriting(format),
    "",
  ].join("\n");
}

function pythonWriting(format) {
  if (!streams("python", format)) return ["    audio.write(response.read())"];
  const chunks = "    while chunk := response.read1():  # audio arrives while it is generated";
  if (format !== "wav") return [chunks, "        audio.write(chunk)"];
  return [
    "    audio.setnchannels(1)",
    "    audio.setsampwidth(2)",
    '    audio.setframerate(int(response.headers["X-Sample-Rate"]))',
    chunks,
    "        audio.writeframes(chunk)",
  ];
}

function javascript({ url, fields, format, file, needsKey, clip, clipType }) {
  const { seed, ...rest } = fields;
  const safe = !seed || Number.isSafeInteger(Number(seed));
  const used = [streams("javascript", format) ? "open" : "writeFile", ...(clip ? ["readFile"] : [])];
  const body = indented({ ...(safe ? fields : rest), ...asked("javascript", format) }, "  ");
  const json = safe ? "JSON.stringify(body)" : `JSON.stringify(body).replace(/}$/, ${JSON.stringify(`,"seed":${seed}}`)})`;
  return [
    "// Node 18 or newer: save as speech.mjs, then run: node speech.mjs",
    `import { ${used.sort().join(", ")} } from "node:fs/promises";`,
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
    ...javascriptWriting(format, JSON.stringify(file)),
    "",
  ].join("\n");
}

function javascriptWriting(format, file) {
  if (!streams("javascript", format)) {
    return [`await writeFile(${file}, Buffer.from(await response.arrayBuffer()));`];
  }
  const sized = format === "wav";
  return [
    `const file = await open(${file}, "w");`,
    ...(sized ? ["let bytes = 0;"] : []),
    "for await (const chunk of response.body) {",
    "  await file.writeFile(chunk); // audio arrives while it is generated",
    ...(sized ? ["  bytes += chunk.length;"] : []),
    "}",
    ...(sized
      ? [
          "// The header came before the length was known.",
          "await file.write(new Uint32Array([bytes - 8]), 0, 4, 4);",
          "await file.write(new Uint32Array([bytes - 44]), 0, 4, 40);",
        ]
      : []),
    "await file.close();",
  ];
}

// One field per line. JSON is also a JavaScript literal, and a Python literal but for `false`.
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
