// OpenAI's own SDK for JavaScript. `how` names the kind of request: one of the functions below.

import { base64, installed, run } from "./cases.mjs";

const { OpenAI } = installed("openai");
const clientOf = (one) => new OpenAI({ baseURL: one.url + "/v1", apiKey: one.key ?? "any", maxRetries: 0 });

const ways = {
  async create(one) {
    const got = await clientOf(one).audio.speech.create(one.fields);
    return { audio: base64(await got.arrayBuffer()), headers: Object.fromEntries(got.headers) };
  },

  async stream(one) {
    const got = await clientOf(one).audio.speech.create(one.fields);
    const chunks = [];
    for await (const chunk of got.body) chunks.push(chunk);
    return { audio: base64(Buffer.concat(chunks)), chunks: chunks.length };
  },

  /** Disconnects after the first audio. */
  async first_chunk(one) {
    const got = await clientOf(one).audio.speech.create(one.fields);
    for await (const chunk of got.body) return { audio: base64(chunk) };
  },

  async models(one) {
    const client = clientOf(one);
    const listed = (await client.models.list()).data;
    return { ids: listed.map((model) => model.id), one: await client.models.retrieve(listed[0].id) };
  },
};

await run(
  (one) => ways[one.how](one),
  (error) => ({ status: error.status, code: error.code, param: error.param }),
);
