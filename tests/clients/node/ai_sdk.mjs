// Vercel's AI SDK with its OpenAI provider.

import { base64, installed, run } from "./cases.mjs";

const { createOpenAI } = installed("@ai-sdk/openai");
const { experimental_generateSpeech: generateSpeech } = installed("ai");

async function speak(one) {
  const provider = createOpenAI({ baseURL: one.url + "/v1", apiKey: one.key ?? "any" });
  const { model, ...fields } = one.fields;
  const got = await generateSpeech({ model: provider.speech(model), maxRetries: 0, ...fields });
  return {
    audio: base64(got.audio.uint8Array),
    format: got.audio.format,
    media_type: got.audio.mediaType,
    warnings: got.warnings.map((warning) => warning.type),
  };
}

await run(speak, (error) => ({ status: error.statusCode, body: error.responseBody }));
