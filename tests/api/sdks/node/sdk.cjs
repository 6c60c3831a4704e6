// Drives OpenAI's own Node library against a live server and prints what it saw as JSON.
//
//     NODE_PATH=<folder with openai> node sdk.cjs http://127.0.0.1:8000/v1

const OpenAI = require("openai");

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [
  { role: "developer", content: "be brief" },
  { role: "user", content: [{ type: "text", text: "hello" }] },
];

async function plain() {
  const answer = await client.chat.completions.create({
    model: "tiny", messages, max_completion_tokens: 6, temperature: 0, n: 2,
  });
  return {
    text: answer.choices[0].message.content,
    indices: answer.choices.map((choice) => choice.index),
    reasons: answer.choices.map((choice) => choice.finish_reason),
    completionTokens: answer.usage.completion_tokens,
    requestIdIsId: answer._request_id === answer.id,
  };
}

async function streamed() {
  const stream = await client.chat.completions.create({
    model: "tiny", messages, max_tokens: 6, temperature: 0,
    stream: true, stream_options: { include_usage: true },
  });
  const seen = { text: "", ids: new Set(), usage: null, reason: null };
  for await (const chunk of stream) {
    seen.ids.add(chunk.id);
    if (chunk.usage) seen.usage = chunk.usage;
    for (const choice of chunk.choices) {
      seen.text += choice.delta.content ?? "";
      seen.reason = choice.finish_reason ?? seen.reason;
    }
  }
  return { ...seen, ids: seen.ids.size };
}

async function helper() {
  const runner = client.chat.completions.stream({
    model: "tiny", messages, max_tokens: 6, temperature: 0, logprobs: true, top_logprobs: 2,
  });
  let text = "";
  runner.on("content", (delta) => { text += delta; });
  const final = await runner.finalChatCompletion();
  return {
    text,
    final: final.choices[0].message.content,
    tokens: final.choices[0].logprobs.content.length,
  };
}

async function legacy() {
  const stream = await client.completions.create({
    model: "tiny", prompt: "hello", max_tokens: 4, temperature: 0, echo: true, logprobs: 1,
    stream: true,
  });
  let text = "";
  for await (const chunk of stream) text += chunk.choices[0].text;
  const answer = await client.completions.create({
    model: "tiny", prompt: "hello", max_tokens: 4, temperature: 0, echo: true, logprobs: 1,
  });
  return { text, plain: answer.choices[0].text, offsets: answer.choices[0].logprobs.text_offset };
}

async function abandoned() {
  const stream = await client.chat.completions.create({
    model: "tiny", messages, max_tokens: 5000, stream: true,
  });
  for await (const chunk of stream) {
    stream.controller.abort();
    return chunk.object;
  }
}

async function responses() {
  const tools = [{
    type: "function", name: "weather", strict: true,
    parameters: {
      type: "object", required: ["city"], additionalProperties: false,
      properties: { city: { type: "string", maxLength: 8 } },
    },
  }];
  const fields = { model: "tiny", input: "hello", temperature: 0 };
  const first = await client.responses.create({ ...fields, max_output_tokens: 6 });
  const second = await client.responses.create({
    ...fields, max_output_tokens: 6, previous_response_id: first.id,
  });
  const stream = await client.responses.create({
    ...fields, tools, tool_choice: "required", stream: true,
  });
  const seen = { kinds: [], arguments: "", calls: [] };
  for await (const event of stream) {
    if (seen.kinds.at(-1) !== event.type) seen.kinds.push(event.type);
    if (event.type === "response.function_call_arguments.delta") seen.arguments += event.delta;
    if (event.type === "response.completed") seen.calls = event.response.output;
  }
  return {
    text: first.output_text, status: first.status,
    tokens: [first.usage.input_tokens, second.usage.input_tokens],
    retrieved: (await client.responses.retrieve(second.id)).output_text === second.output_text,
    kinds: seen.kinds, calls: seen.calls.map((call) => call.name),
    areWhole: seen.arguments === seen.calls.map((call) => call.arguments).join(""),
  };
}

async function embeddings() {
  const answer = await client.embeddings.create({ model: "tiny", input: ["hello", "hello world"] });
  return answer.data.map((item) => item.embedding.length);
}

async function models() {
  const listed = [];
  for await (const model of client.models.list()) listed.push(model.id);
  return { listed, one: (await client.models.retrieve("tiny")).id };
}

async function failure(request) {
  try {
    await request();
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
  return null;
}

async function main() {
  const chat = (fields) => client.chat.completions.create({ model: "tiny", messages, ...fields });
  const seen = {
    plain: await plain(),
    streamed: await streamed(),
    helper: await helper(),
    legacy: await legacy(),
    abandoned: await abandoned(),
    responses: await responses(),
    embeddings: await embeddings(),
    models: await models(),
    badRequest: await failure(() => chat({ temperature: 3 })),
    badStream: await failure(() => chat({ temperature: 3, stream: true })),
    notFound: await failure(() => chat({ model: "gpt-4" })),
  };
  process.stdout.write(JSON.stringify(seen));
}

main();
