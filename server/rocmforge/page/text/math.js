// Formulae in markdown: \( \), \[ \], $$ $$, and $ $ where it cannot be meant as money.

import "../vendor/katex/katex.js";

// A model can write macros that expand without end, and rules as large as the page.
const LIMITS = { throwOnError: true, trust: false, maxExpand: 500, maxSize: 40, output: "htmlAndMathml" };
// How far the end is looked for: a text of opening signs alone would take for ever.
const LONGEST = 4000; // characters
const MOST_LINES = 100;
const MOST_DRAWN = 300; // formulae of a block; the others are shown as they were written
const PAIRS = [
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$$", "$$", true],
  ["$", "$", false],
];

function findPair(source, position) {
  for (const [open, close, isDisplay] of PAIRS) {
    if (!source.startsWith(open, position)) continue;
    const start = position + open.length;
    const near = source.slice(start, start + LONGEST);
    let length = near.indexOf(close);
    while (close[0] === "$" && near[length - 1] === "\\") length = near.indexOf(close, length + 1);
    if (length <= 0) return null;
    const content = near.slice(0, length);
    const end = start + length;
    // As pandoc has it: "$5 and $10" is no formula.
    const isMoney = /^\s|\s$/.test(content) || /\d/.test(source[end + 1] ?? "");
    if (open === "$" && (isMoney || content.includes("\n"))) return null;
    return { content, isDisplay, next: end + close.length };
  }
  return null;
}

function inline(state, silent) {
  const found = findPair(state.src, state.pos);
  if (!found) return false;
  if (!silent) push(state, found.content, found.isDisplay);
  state.pos = found.next;
  return true;
}

/** A formula that begins a line and may go on over several, with empty ones among them. */
function block(state, startLine, endLine, silent) {
  const begin = state.bMarks[startLine] + state.tShift[startLine];
  const open = state.src.slice(begin, begin + 2);
  if (open !== "$$" && open !== "\\[") return false;
  const close = open === "$$" ? "$$" : "\\]";
  for (let line = startLine; line < Math.min(endLine, startLine + MOST_LINES); line++) {
    const from = line === startLine ? begin + 2 : state.bMarks[line];
    const end = state.src.slice(from, state.eMarks[line]).trimEnd();
    if (!end.endsWith(close)) {
      if (end.includes(close)) return false; // text comes behind it
      continue;
    }
    if (silent) return true;
    const last = state.eMarks[line];
    const content = state.src.slice(begin + 2, state.src.lastIndexOf(close, last));
    push(state, content, true).map = [startLine, line + 1];
    state.line = line + 1;
    return true;
  }
  return false;
}

function push(state, content, isDisplay) {
  const token = state.push("math", "", 0);
  token.content = content;
  token.meta = { isDisplay };
  return token;
}

/** Has a markdown-it take formulae out before it looks for emphasis and escapes in them. */
export function mathRules(md) {
  md.inline.ruler.before("escape", "math", inline);
  md.block.ruler.before("fence", "math", block, { alt: ["paragraph", "blockquote", "list"] });
  md.renderer.rules.math = (tokens, place) => {
    const { content, meta } = tokens[place];
    const kind = meta.isDisplay ? "math display" : "math";
    return `<span class="${kind}">${md.utils.escapeHtml(content)}</span>`;
  };
}

/** Draws the formulae within an element that has been sanitised. */
export function drawMath(element) {
  for (const span of [...element.querySelectorAll("span.math")].slice(0, MOST_DRAWN)) {
    const displayMode = span.classList.contains("display");
    const source = span.textContent;
    try {
      globalThis.katex.render(source, span, { ...LIMITS, displayMode });
      if (displayMode) span.tabIndex = 0; // a wide one is scrolled
    } catch (error) {
      span.textContent = source; // as it was written, and why it is no formula
      span.title = error.message;
    }
  }
}
