// What the user has decided, kept in this browser.

import { readStored, writeStored } from "./api.js";

const NAME = "rocmforge.settings";

/** Fields of a request that people may set; empty ones are the model's business. */
export const SAMPLING = [
  { name: "temperature", label: "Temperature", step: 0.05, min: 0, max: 2 },
  { name: "top_p", label: "Top-p", step: 0.01, min: 0, max: 1 },
  { name: "top_k", label: "Top-k", step: 1, min: -1 },
  { name: "min_p", label: "Min-p", step: 0.01, min: 0, max: 1 },
  { name: "repetition_penalty", label: "Repetition penalty", step: 0.01, min: 0.01, max: 10 },
  { name: "max_tokens", label: "Most tokens", step: 1, min: 1 },
  { name: "seed", label: "Seed", step: 1 },
];

export function readSettings() {
  try {
    return { system: "", tools: "", effort: "", model: "", sampling: {}, ...JSON.parse(readStored(NAME)) };
  } catch {
    return { system: "", tools: "", effort: "", model: "", sampling: {} };
  }
}

export const writeSettings = (settings) => writeStored(NAME, JSON.stringify(settings));

/** The tools that a request names; throws an Error that says what is wrong with the text. */
export function readTools(text) {
  if (!text.trim()) return undefined;
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new Error(`The tools are not JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) throw new Error("The tools must be a list, as OpenAI's API takes it.");
  return tools.length ? tools : undefined;
}
