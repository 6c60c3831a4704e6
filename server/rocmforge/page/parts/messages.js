// The messages of a conversation, and what can be done with each.

import { html, useEffect, useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { copyText } from "../text/clipboard.js";
import { renderMarkdown } from "../text/markdown.js";
import { shown } from "../data/conversation.js";
import { IconButton } from "./icons.js";
import { Images } from "./images.js";
import { ToolCalls } from "./tools.js";

export function Messages({ session }) {
  const found = shown(session.current);
  const isBusy = session.isBusy();
  return html`<div class="messages">
    ${found.map(
      ({ node, siblings, place }, index) =>
        html`<${Message}
          key=${node.id}
          session=${session}
          node=${node}
          siblings=${siblings}
          place=${place}
          isLast=${index === found.length - 1}
          isWriting=${isBusy && index === found.length - 1}
          isBusy=${isBusy}
        />`,
    )}
  </div>`;
}

function Message({ session, node, siblings, place, isLast, isWriting, isBusy }) {
  const [isEdited, setEdited] = useState(false);
  const isAnswer = node.role === "assistant";
  const who = isAnswer ? `Answer of ${node.model}` : node.role === "tool" ? `Result of ${node.name}` : "You";
  return html`<article class="message ${node.role}" aria-label=${who} aria-busy=${isWriting}>
    ${isAnswer && html`<h2>${node.model}</h2>`} ${node.role === "tool" && html`<h2>Result of ${node.name}</h2>`}
    ${node.thoughts && html`<${Thoughts} node=${node} isWriting=${isWriting && !node.text} />`}
    <${Images} addresses=${node.images} />
    ${isEdited
      ? html`<${Editor} text=${node.text} onDone=${(text) => (setEdited(false), text !== null && session.edit(node, text))} />`
      : isAnswer
        ? html`<${Markdown} text=${node.text} isWriting=${isWriting} />`
        : node.text && html`<p class="plain">${node.text}</p>`}
    ${isWriting && !node.text && !node.thoughts && html`<p class="waiting" aria-hidden="true"><i /><i /><i /></p>`}
    ${node.calls && html`<${ToolCalls} session=${session} node=${node} isOpen=${isLast && !isBusy} />`}
    <${Outcome} session=${session} node=${node} isBusy=${isBusy} />
    ${!isEdited &&
    !isWriting &&
    html`<footer>
      ${siblings.length > 1 &&
      html`<span class="branches" role="group" aria-label="Versions">
        <${IconButton} icon="back" label="Earlier version" disabled=${place === 0 || isBusy} onClick=${() => session.choose(siblings[place - 1])} />
        <span>${place + 1} of ${siblings.length}</span>
        <${IconButton} icon="on" label="Later version" disabled=${place === siblings.length - 1 || isBusy} onClick=${() => session.choose(siblings[place + 1])} />
      </span>`}
      <${CopyButton} text=${node.text} />
      ${node.role === "user" && html`<${IconButton} icon="edit" label="Edit" disabled=${isBusy} onClick=${() => setEdited(true)} />`}
      ${isAnswer && html`<${IconButton} icon="again" label="Answer again" disabled=${isBusy} onClick=${() => session.regenerate(node)} />`}
      ${isAnswer && html`<${Speed} node=${node} context=${session.model?.max_model_len} />`}
    </footer>`}
  </article>`;
}

/** Text as markdown. It is drawn less often the longer that takes, so that the page stays usable. */
function Markdown({ text, isWriting }) {
  const root = useRef();
  const state = useRef({ timer: 0, took: 0 }).current;
  useLayoutEffect(() => {
    const draw = () => {
      state.timer = 0;
      const since = performance.now();
      renderMarkdown(root.current, state.text, !state.isWriting);
      state.took = performance.now() - since;
    };
    Object.assign(state, { text, isWriting });
    if (!isWriting) {
      clearTimeout(state.timer);
      draw();
    } else if (!state.timer) {
      state.timer = setTimeout(draw, Math.max(40, 4 * state.took));
    }
  }, [text, isWriting]);
  useEffect(() => () => clearTimeout(state.timer), []);
  return html`<div class="markdown" ref=${root} />`;
}

function Thoughts({ node, isWriting }) {
  return html`<details class="thoughts">
    <summary>${isWriting ? "Thinking…" : "Thoughts"}</summary>
    <p class="plain">${node.thoughts}</p>
  </details>`;
}

function Editor({ text, onDone }) {
  const area = useRef();
  useEffect(() => area.current.focus(), []);
  const send = () => area.current.value.trim() && onDone(area.current.value.trim());
  const onKeyDown = (event) => {
    if (event.key === "Escape") onDone(null);
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  };
  return html`<div class="editor">
    <textarea ref=${area} aria-label="Edit your message" rows="3" onKeyDown=${onKeyDown}>${text}</textarea>
    <div class="buttons">
      <button type="button" onClick=${() => onDone(null)}>Cancel</button>
      <button type="button" class="main" onClick=${send}>Send</button>
    </div>
  </div>`;
}

function Outcome({ session, node, isBusy }) {
  if (node.error) {
    return html`<div class="error">
      <p>${node.error}</p>
      <button type="button" disabled=${isBusy} onClick=${() => session.regenerate(node)}>Try again</button>
    </div>`;
  }
  if (node.stopped) return html`<p class="note">Stopped.</p>`;
  if (node.isCut) return html`<p class="note">The answer has reached the most tokens that it may have.</p>`;
  return null;
}

function CopyButton({ text }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async () => {
    setCopied(await copyText(text));
    setTimeout(() => setCopied(false), 2000);
  };
  return html`<${IconButton} icon=${isCopied ? "check" : "copy"} label=${isCopied ? "Copied" : "Copy"} onClick=${copy} />`;
}

function Speed({ node: { tokens, promptTokens, firstMs, ms }, context }) {
  if (!tokens || !firstMs) return null;
  const rate = tokens > 1 ? (1000 * (tokens - 1)) / (ms - firstMs) : null;
  const parts = [`${tokens} tokens`, `first after ${seconds(firstMs)}`];
  if (rate) parts.push(`${rate.toFixed(rate < 10 ? 1 : 0)} tokens/s`);
  const used = (promptTokens + tokens) / context;
  if (used > 0.5) parts.push(`${Math.round(100 * used)} % of the context is used`);
  return html`<span class="speed">${parts.join(", ")}</span>`;
}

const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
