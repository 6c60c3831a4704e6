// What the page knows and does: models, conversations, answers that are being written.

import { ApiError, currentKey, getJson, getText, post, stream, useKey } from "./api.js";
import { addMessage, choose, imported, messagesUpTo, newConversation, shown } from "./conversation.js";
import { Figures } from "./figures.js";
import { readSettings, readTools, writeSettings } from "./settings.js";
import * as store from "./store.js";

const POLL_MS = 5000;
const POLL_WHILE_LOADING_MS = 700;
const SAVE_MS = 1000;

export class Session extends EventTarget {
  settings = readSettings();
  models = [];
  health = null;
  figures = new Figures();
  conversations = [];
  current = newConversation();
  running = new Map(); // by the conversation's id: how to stop its answer
  needsKey = false;
  keyError = "";
  trouble = ""; // what is wrong with the server
  storeTrouble = ""; // and with the browser's store
  notice = ""; // for those who do not see the page
  loadTrouble = ""; // why the model could not be loaded by hand
  #timers = new Map();
  #removed = new Set();
  #others = new BroadcastChannel("rocmforge"); // pages of the same server in other tabs

  changed() {
    this.dispatchEvent(new Event("change"));
  }

  async start() {
    this.#others.onmessage = () => this.#readAgain();
    try {
      this.conversations = await store.readAll();
    } catch {
      this.storeTrouble = "This browser keeps nothing: conversations are lost when the page is closed.";
    }
    const wanted = location.hash.slice(1);
    this.current = this.#find(wanted) ?? this.current;
    this.changed();
    await this.refresh();
  }

  // --- the server ---

  /** Asks what the server has, and comes back for more. */
  async refresh() {
    clearTimeout(this.#timers.get("refresh"));
    if (!document.hidden && !this.needsKey) await this.#lookAtModels();
    const wait = this.model?.status.value === "loading" ? POLL_WHILE_LOADING_MS : POLL_MS;
    clearTimeout(this.#timers.get("refresh"));
    this.#timers.set("refresh", setTimeout(() => this.refresh(), wait));
  }

  async #lookAtModels() {
    try {
      const { data } = await getJson("v1/models");
      this.models = data.filter(({ capabilities }) => capabilities.includes("chat"));
      this.health = await getJson("health").catch(() => null);
      this.trouble = this.models.length ? "" : "This server has no model to chat with.";
      this.needsKey = false;
      this.keyError = "";
    } catch (error) {
      this.#failed(error);
    }
    this.changed();
  }

  #failed(error) {
    if (error.status === 401) {
      if (!this.needsKey && currentKey()) this.keyError = "The server does not know this key.";
      this.needsKey = true;
    } else {
      this.trouble = error.message;
    }
  }

  /** Takes over what another tab has written, so that this one does not write something older. */
  async #readAgain() {
    const own = new Map([...this.running.keys()].map((id) => [id, this.#find(id)]));
    this.conversations = (await store.readAll()).map((each) => own.get(each.id) ?? each);
    this.current = this.#find(this.current.id) ?? this.current;
    this.changed();
  }

  #find(id) {
    return this.conversations.find((each) => each.id === id);
  }

  /** What the model runs on, if the server says so. */
  get device() {
    return this.health?.models.find(({ model }) => model === this.model?.root)?.device;
  }

  /** The model that answers. */
  get model() {
    return this.models.find(({ id }) => id === this.settings.model) ?? this.models[0];
  }

  set(changes) {
    Object.assign(this.settings, changes);
    writeSettings(this.settings);
    this.changed();
  }

  async enterKey(text, isKept) {
    useKey(text, isKept);
    this.needsKey = false;
    await this.refresh();
  }

  async load(model) {
    this.loadTrouble = "";
    try {
      const loading = post(`v1/models/${encodeURI(model.id)}/load`);
      this.#timers.set("look", setTimeout(() => this.refresh(), 200));
      await loading;
    } catch (error) {
      this.loadTrouble = error.message;
    }
    await this.refresh();
  }

  /** Takes the server's figures; what it is asked every other second while somebody looks. */
  async measure() {
    try {
      this.figures.take(await getText("metrics"));
    } catch (error) {
      this.figures.fail(error.status === 403 ? "This key does not open the figures." : error.message);
    }
  }

  // --- conversations ---

  open(conversation) {
    this.current = conversation;
    const isKept = this.conversations.includes(conversation);
    history.replaceState(null, "", isKept ? `#${conversation.id}` : location.pathname);
    this.changed();
  }

  startAnew() {
    this.open(newConversation());
  }

  rename(conversation, title) {
    conversation.title = title.trim() || conversation.title;
    this.#save(conversation);
  }

  async remove(conversation) {
    this.#removed.add(conversation.id); // its answer may still be coming
    this.stop(conversation);
    this.conversations = this.conversations.filter(({ id }) => id !== conversation.id);
    if (this.current.id === conversation.id) this.startAnew();
    this.changed();
    await store.remove(conversation.id);
    this.#others.postMessage(null);
  }

  async import(file) {
    const found = imported(await file.text());
    for (const conversation of found) await store.write(conversation);
    this.conversations = await store.readAll();
    this.current = this.#find(this.current.id) ?? this.current;
    this.notice = `${found.length} conversations were imported.`;
    this.changed();
  }

  async #save(conversation) {
    clearTimeout(this.#timers.get(conversation.id));
    this.#timers.delete(conversation.id);
    if (this.#removed.has(conversation.id)) return;
    this.conversations = [conversation, ...this.conversations.filter((c) => c.id !== conversation.id)];
    this.conversations.sort((a, b) => b.updated - a.updated);
    this.changed();
    try {
      await store.write(conversation);
      if (!this.isBusy(conversation)) this.#others.postMessage(null);
    } catch {
      this.storeTrouble = "This browser could not keep the conversation.";
      this.changed();
    }
  }

  #saveSoon(conversation) {
    const { id } = conversation;
    if (this.#timers.has(id)) return;
    this.#timers.set(id, setTimeout(() => this.#save(conversation), SAVE_MS));
  }

  // --- messages ---

  isBusy(conversation = this.current) {
    return this.running.has(conversation.id);
  }

  send(text, images = []) {
    const conversation = this.current;
    const last = shown(conversation).at(-1);
    return this.#ask(conversation, last?.node.id, text, images);
  }

  /** Asks in other words; the images stay. */
  edit(node, text) {
    return this.#ask(this.current, node.parent, text, node.images);
  }

  #ask(conversation, parent, text, images) {
    const message = images?.length ? { role: "user", text, images } : { role: "user", text };
    const question = addMessage(conversation, parent, message);
    history.replaceState(null, "", `#${conversation.id}`);
    return this.answer(conversation, question.id);
  }

  /** Hands the results of an answer's tool calls to the model. */
  returnResults(node, results) {
    let parent = node.id;
    for (const [place, call] of node.calls.entries()) {
      const message = { role: "tool", text: results[place], callId: call.id, name: call.name };
      parent = addMessage(this.current, parent, message).id;
    }
    return this.answer(this.current, parent);
  }

  regenerate(node) {
    return this.answer(this.current, node.parent);
  }

  choose(node) {
    choose(this.current, node);
    this.#save(this.current);
  }

  stop(conversation = this.current) {
    this.running.get(conversation.id)?.abort();
  }

  /** Has the model answer the messages up to one. */
  async answer(conversation, upTo) {
    if (this.isBusy(conversation) || !this.model) return;
    const model = this.model.id;
    const node = addMessage(conversation, upTo, { role: "assistant", model });
    const abort = new AbortController();
    this.running.set(conversation.id, abort);
    this.notice = "The answer is being written.";
    this.#save(conversation);
    const since = performance.now();
    try {
      const body = this.#body(conversation, upTo, model);
      const events = stream("v1/chat/completions", body, abort.signal);
      if (this.model.status.value !== "loaded") setTimeout(() => this.refresh(), 100);
      for await (const event of events) {
        take(node, event, performance.now() - since);
        this.#saveSoon(conversation);
        this.changed();
      }
      this.notice = "The answer is complete.";
    } catch (error) {
      if (abort.signal.aborted) {
        node.stopped = true;
        this.notice = "The answer was stopped.";
      } else {
        node.error = error.message;
        this.notice = error.message;
        if (error instanceof ApiError && [0, 401].includes(error.status)) this.#failed(error);
      }
    }
    this.running.delete(conversation.id);
    await this.#save(conversation);
    this.changed();
  }

  #body(conversation, upTo, model) {
    const { system, tools, effort, sampling } = this.settings;
    const messages = messagesUpTo(conversation, upTo);
    if (system.trim()) messages.unshift({ role: "system", content: system });
    const body = { model, messages, stream: true, ...sampling };
    body.stream_options = { include_usage: true, continuous_usage_stats: true };
    if (effort) body.reasoning_effort = effort;
    const found = readTools(tools);
    return found ? { ...body, tools: found } : body;
  }
}

/** Adds what an event of the stream brings to the answer. */
function take(node, { choices, usage }, elapsed) {
  const [choice] = choices;
  const { content, reasoning_content: thoughts, tool_calls: calls } = choice?.delta ?? {};
  if (content || thoughts || calls) node.firstMs ??= elapsed;
  if (content) node.text += content;
  if (thoughts) node.thoughts = (node.thoughts ?? "") + thoughts;
  for (const { index, id, function: part } of calls ?? []) {
    node.calls ??= [];
    node.calls[index] ??= { id: "", name: "", arguments: "" };
    if (id) node.calls[index].id = id;
    if (part?.name) node.calls[index].name = part.name;
    node.calls[index].arguments += part?.arguments ?? "";
  }
  if (choice?.finish_reason === "length") node.isCut = true;
  if (usage) {
    node.tokens = usage.completion_tokens;
    node.promptTokens = usage.prompt_tokens;
  }
  node.ms = elapsed;
}
