// Text of a model as HTML. It is foreign text: it becomes elements only through the sanitiser, it
// loads nothing, and its links lead to web pages only, when people follow them.

import hljs from "../vendor/highlight.js";
import MarkdownIt from "../vendor/markdown-it.js";
import DOMPurify from "../vendor/purify.js";
import { copyText } from "./clipboard.js";
import { drawMath, mathRules } from "./math.js";

const MOST_HIGHLIGHTED = 50_000; // characters
const CLEAN = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    ...["a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol"],
    ...["p", "pre", "s", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["class", "href", "start"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};
const CLEAN_CODE = { RETURN_DOM_FRAGMENT: true, ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"] };

const md = makeMarkdown();

function makeMarkdown() {
  const made = new MarkdownIt({ html: false, linkify: true });
  made.validateLink = (address) => CLEAN.ALLOWED_URI_REGEXP.test(address.trim());
  made.use(mathRules);
  // An image would tell its server what was said, in its address: it is a link instead.
  made.renderer.rules.image = (tokens, place) => {
    const address = made.utils.escapeHtml(tokens[place].attrGet("src") ?? "");
    const text = made.utils.escapeHtml(tokens[place].content || "image");
    return `<a href="${address}">${text} (image)</a>`;
  };
  for (const cell of ["th_open", "td_open"]) {
    made.renderer.rules[cell] = (tokens, place, options, env, self) => {
      const [, side] = /text-align:(\w+)/.exec(tokens[place].attrGet("style") ?? "") ?? [];
      tokens[place].attrs = side ? [["class", `to-${side}`]] : null;
      return self.renderToken(tokens, place, options);
    };
  }
  return made;
}

/**
 * Shows `text` in `root`. Only those of its blocks that have changed since the last time are made
 * anew, so that a long answer can be shown while it comes.
 */
export function renderMarkdown(root, text, isComplete) {
  const env = {};
  const tokens = md.parse(text, env);
  const lines = text.split("\n");
  const groups = groupsOf(tokens);
  const before = root.shownBlocks ?? [];
  root.shownBlocks = groups.map((group, place) => {
    const isDone = isComplete || place < groups.length - 1;
    const source = sourceOf(group, lines);
    const old = before[place];
    if (old?.source === source && old.isDone === isDone) return old;
    const element = drawBlock(group, env, isDone);
    if (old) old.element.replaceWith(element);
    else root.append(element);
    return { source, isDone, element };
  });
  for (const { element } of before.slice(groups.length)) element.remove();
}

/** The tokens of each block of the outermost level. */
function groupsOf(tokens) {
  const groups = [];
  let depth = 0;
  for (const token of tokens) {
    if (depth === 0) groups.push([]);
    groups.at(-1).push(token);
    depth += token.nesting;
  }
  return groups;
}

function sourceOf([{ map, type }], lines) {
  return map ? `${type}\n${lines.slice(map[0], map[1]).join("\n")}` : type;
}

function drawBlock(tokens, env, isDone) {
  const element = document.createElement("div");
  element.className = "block";
  element.append(DOMPurify.sanitize(md.renderer.render(tokens, md.options, env), CLEAN));
  for (const link of element.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  for (const table of element.querySelectorAll("table")) {
    const frame = document.createElement("div");
    frame.className = "wide";
    frame.tabIndex = 0; // people scroll it with the keyboard
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const code of element.querySelectorAll("pre > code")) frameCode(code, isDone);
  if (isDone) drawMath(element);
  return element;
}

function frameCode(code, isDone) {
  const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
  const text = code.textContent;
  if (isDone && hljs.getLanguage(language) && text.length <= MOST_HIGHLIGHTED) {
    const { value } = hljs.highlight(text, { language, ignoreIllegals: true });
    code.replaceChildren(DOMPurify.sanitize(value, CLEAN_CODE));
  }
  const head = document.createElement("div");
  head.className = "code-head";
  const name = document.createElement("span");
  name.textContent = language || "text";
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.setAttribute("aria-label", `Copy this code: ${language || "text"}`);
  button.onclick = async () => {
    button.textContent = (await copyText(text)) ? "Copied" : "Not copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  };
  head.append(name, button);
  const frame = document.createElement("div");
  frame.className = "code";
  code.parentElement.replaceWith(frame);
  const pre = document.createElement("pre");
  pre.tabIndex = 0;
  pre.append(code);
  frame.append(head, pre);
}
