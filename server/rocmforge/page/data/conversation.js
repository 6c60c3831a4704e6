// A conversation is a tree of messages: an edited question and an answer that was written anew stand
// beside the old ones. `chosen` says for each message which of those below it is shown.

import { isAddress, MOST_IMAGES } from "./images.js";

const ROOT = "";
const FORMAT = "rocmforge-conversations";

export const newId = () =>
  Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) =>
    byte.toString(16).padStart(2, "0"),
  ).join("");

export function newConversation() {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, nodes: {}, chosen: {} };
}

/** Adds a message below `parent` and shows it. */
export function addMessage(conversation, parent, message) {
  const node = { id: newId(), parent: parent ?? ROOT, created: Date.now(), text: "", ...message };
  conversation.nodes[node.id] = node;
  conversation.chosen[node.parent] = node.id;
  conversation.updated = node.created;
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.text) || "Image";
  return node;
}

const titleOf = (text) => {
  const line = text.trim().replace(/\s+/g, " ");
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
};

/** The messages that are shown, each with those that stand beside it. */
export function shown(conversation) {
  const beside = new Map();
  for (const node of Object.values(conversation.nodes)) {
    beside.set(node.parent, [...(beside.get(node.parent) ?? []), node]);
  }
  const found = [];
  let parent = ROOT;
  while (beside.has(parent)) {
    const siblings = beside.get(parent).sort((a, b) => a.created - b.created);
    const node = siblings.find(({ id }) => id === conversation.chosen[parent]) ?? siblings.at(-1);
    found.push({ node, siblings, place: siblings.indexOf(node) });
    parent = node.id;
  }
  return found;
}

export function choose(conversation, node) {
  conversation.chosen[node.parent] = node.id;
}

/** The messages up to one, as the API takes them. An answer that failed says nothing. */
export function messagesUpTo(conversation, id) {
  const found = [];
  for (let node = conversation.nodes[id]; node; node = conversation.nodes[node.parent]) {
    found.unshift(node);
  }
  return found.filter((node) => node.role !== "assistant" || node.text || node.calls).map(asMessage);
}

function asMessage(node) {
  if (node.role === "tool") return { role: "tool", content: node.text, tool_call_id: node.callId };
  if (node.role === "user") return { role: "user", content: contentOf(node) };
  const message = { role: "assistant", content: node.text };
  if (node.thoughts) message.reasoning_content = node.thoughts;
  if (node.calls) {
    message.tool_calls = node.calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
  }
  return message;
}

function contentOf({ text, images }) {
  if (!images) return text;
  const parts = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

export const exported = (conversations) =>
  JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);

/** Reads a file of conversations. They get ids of their own, so that none replaces another. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || file.version !== 1 || !Array.isArray(file.conversations)) {
    throw new Error("This file holds no conversations that were exported from this page.");
  }
  return file.conversations.map(checked);
}

const asText = (value) => (typeof value === "string" ? value : "");
const asTime = (value) => (Number.isFinite(value) ? value : Date.now());

/** Takes what is known of a conversation and nothing else: others may have written it. */
function checked(given) {
  const ids = new Map([[ROOT, ROOT]]);
  const nodes = Object.values(given?.nodes ?? {});
  for (const node of nodes) ids.set(node.id, newId());
  const made = { ...newConversation(), title: asText(given?.title).slice(0, 200) };
  made.created = asTime(given?.created);
  made.updated = asTime(given?.updated);
  for (const node of nodes) {
    if (!["user", "assistant", "tool"].includes(node.role) || !ids.has(node.parent)) {
      throw new Error("This file is damaged: a message in it has no place.");
    }
    const kept = { id: ids.get(node.id), parent: ids.get(node.parent), role: node.role };
    kept.created = asTime(node.created);
    for (const name of ["text", "thoughts", "model", "error", "callId", "name"]) {
      if (name === "text" || node[name]) kept[name] = asText(node[name]);
    }
    if (Array.isArray(node.images)) kept.images = node.images.filter(isAddress).slice(0, MOST_IMAGES);
    if (Array.isArray(node.calls)) {
      kept.calls = node.calls.map((call) => ({
        id: asText(call?.id),
        name: asText(call?.name),
        arguments: asText(call?.arguments),
      }));
    }
    made.nodes[kept.id] = kept;
  }
  for (const [parent, child] of Object.entries(given?.chosen ?? {})) {
    if (ids.has(parent) && ids.has(child)) made.chosen[ids.get(parent)] = ids.get(child);
  }
  return made;
}
