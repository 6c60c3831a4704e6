// Calls of the user's functions: what the model wants called, and the results for it.

import { html, useState } from "../vendor/preact.js";

export function ToolCalls({ session, node, isOpen }) {
  const [results, setResults] = useState(node.calls.map(() => ""));
  const set = (place, text) => setResults(results.map((old, index) => (index === place ? text : old)));
  const submit = (event) => {
    event.preventDefault();
    session.returnResults(node, results);
  };
  return html`<form class="calls" onSubmit=${submit}>
    ${node.calls.map(
      (call, place) => html`<section class="call" aria-label=${`Call of ${call.name}`}>
        <p>Calls <code>${call.name}</code></p>
        <pre tabindex="0">${indented(call.arguments)}</pre>
        ${isOpen &&
        html`<label>
          Result
          <textarea rows="2" required value=${results[place]} onInput=${(event) => set(place, event.target.value)} />
        </label>`}
      </section>`,
    )}
    ${isOpen && html`<button class="main">Return ${node.calls.length > 1 ? "the results" : "the result"}</button>`}
  </form>`;
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // still being written
  }
}
