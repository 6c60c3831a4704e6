// The first look: which model answers, and what one might ask it.

import { html } from "../vendor/preact.js";

const EXAMPLES = [
  "Explain how a bicycle stays upright, in three sentences.",
  "Write a Python function that finds the longest line of a file.",
  "Plan a dinner for four with what is in season.",
];

export function Welcome({ session }) {
  const { model, device } = session;
  if (!model) return html`<div class="welcome"><h1>ROCmForge</h1></div>`;
  return html`<div class="welcome">
    <h1>${model.id}</h1>
    <p>${device ? `Runs on ${device}. ` : ""}What you write stays between this browser and your server.</p>
    <ul aria-label="Examples">
      ${EXAMPLES.map((text) => html`<li><button type="button" onClick=${() => session.send(text)}>${text}</button></li>`)}
    </ul>
  </div>`;
}
