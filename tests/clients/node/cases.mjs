// Shared by the client scripts in this folder, as ../cases.py for Python: a process reads all cases of its client as JSON
// from stdin and prints the result of each as the last line. The argument is the folder where the clients are installed.

import { createRequire } from "node:module";
import { text } from "node:stream/consumers";

export const installed = createRequire(`${process.argv[2]}/package.json`);

/** Calls `speak` for each case, one after the other. Exceptions of the client are results too. */
export async function run(speak, describeError) {
  const answers = {};
  for (const [name, one] of Object.entries(JSON.parse(await text(process.stdin)))) {
    try {
      answers[name] = await speak(one);
    } catch (error) {
      answers[name] = { raised: error.constructor.name, message: error.message, ...describeError(error) };
    }
  }
  console.log("\n" + JSON.stringify(answers));
}

export const base64 = (bytes) => Buffer.from(bytes).toString("base64");
