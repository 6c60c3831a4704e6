// Drives Vercel's AI SDK against a live server and prints what it saw as JSON.
//
//     NODE_PATH=<folder with ai> node ai_sdk.cjs http://127.0.0.1:8000/v1

const { embedMany, generateObject, generateText, jsonSchema, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");

const provider = createOpenAICompatible({
  name: "rocmforge", baseURL: process.argv[2], apiKey: "none",
  includeUsage: true, supportsStructuredOutputs: true,
});
const common = { model: provider("tiny"), prompt: "hello", maxRetries: 0, temperature: 0 };
const schema = jsonSchema({
  type: "object",
  properties: { city: { type: "string", maxLength: 8 } },
  required: ["city"],
  additionalProperties: false,
});
const tools = { weather: tool({ description: "d", inputSchema: schema }) };

async function text() {
  const plain = await generateText({ ...common, maxOutputTokens: 8 });
  const stream = streamText({ ...common, maxOutputTokens: 8 });
  let streamed = "";
  for await (const piece of stream.textStream) streamed += piece;
  return {
    plain: plain.text, streamed,
    reasons: [plain.finishReason, await stream.finishReason],
    tokens: [plain.usage.outputTokens, (await stream.usage).outputTokens],
  };
}

async function calls() {
  const options = { ...common, tools, toolChoice: "required", temperature: 1, seed: 1 };
  const plain = await generateText(options);
  const stream = streamText(options);
  for await (const part of stream.fullStream) if (part.type === "error") throw part.error;
  const inputs = (found) => found.map((call) => [call.toolName, Object.keys(call.input)]);
  return {
    plain: inputs(plain.toolCalls), streamed: inputs(await stream.toolCalls),
    reasons: [plain.finishReason, await stream.finishReason],
  };
}

async function object() {
  const { object } = await generateObject({ ...common, schema });
  return Object.keys(object);
}

async function embeddings() {
  const model = provider.textEmbeddingModel("tiny");
  const found = await embedMany({ model, values: ["hello", "hello world"], maxRetries: 0 });
  return found.embeddings.map((row) => row.length);
}

async function main() {
  console.log(JSON.stringify({
    text: await text(), calls: await calls(), object: await object(),
    embeddings: await embeddings(),
  }));
}

main().catch((error) => { console.error(error); process.exit(1); });
