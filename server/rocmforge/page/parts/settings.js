// Dialogues: settings, and the key of a server that asks for one.

import { currentKey, isKeyKept } from "../data/api.js";
import { SAMPLING, readTools } from "../data/settings.js";
import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { IconButton } from "./icons.js";

const EFFORTS = ["none", "low", "medium", "high"];

function Dialogue({ title, onClose, children, canClose = true }) {
  const dialog = useRef();
  useEffect(() => {
    dialog.current.showModal();
  }, []);
  return html`<dialog
    ref=${dialog}
    aria-labelledby="dialogue-title"
    onClose=${onClose}
    onCancel=${(event) => canClose || event.preventDefault()}
  >
    <header>
      <h2 id="dialogue-title">${title}</h2>
      ${canClose && html`<${IconButton} icon="close" label="Close" onClick=${() => dialog.current.close()} />`}
    </header>
    ${children}
  </dialog>`;
}

export function KeyDialogue({ session }) {
  const [text, setText] = useState(currentKey());
  const [isKept, setKept] = useState(isKeyKept());
  const enter = (event) => {
    event.preventDefault();
    session.enterKey(text, isKept);
  };
  return html`<${Dialogue} title="This server asks for a key" canClose=${false}>
    <form onSubmit=${enter}>
      ${session.keyError && html`<p class="error" role="alert">${session.keyError}</p>`}
      <label>Key <input type="password" autocomplete="off" required value=${text} onInput=${(event) => setText(event.target.value)} /></label>
      <label class="check">
        <input type="checkbox" checked=${isKept} onChange=${(event) => setKept(event.target.checked)} />
        Keep it in this browser, where whoever uses it can read it
      </label>
      <button class="main">Enter</button>
    </form>
  <//>`;
}

export function SettingsDialogue({ session, onClose }) {
  const { settings, model } = session;
  const [key, setKey] = useState(currentKey());
  const [isKept, setKept] = useState(isKeyKept());
  const [trouble, setTrouble] = useState("");
  const setTools = (tools) => {
    session.set({ tools });
    try {
      readTools(tools);
      setTrouble("");
    } catch (error) {
      setTrouble(error.message);
    }
  };
  const setSampling = (name, text) => {
    const sampling = { ...settings.sampling };
    delete sampling[name];
    if (text !== "" && Number.isFinite(Number(text))) sampling[name] = Number(text);
    session.set({ sampling });
  };
  const useNewKey = () => {
    if (key !== currentKey() || isKept !== isKeyKept()) session.enterKey(key, isKept);
  };
  const close = () => {
    useNewKey();
    onClose();
  };
  return html`<${Dialogue} title="Settings" onClose=${close}>
    <label>
      System message
      <textarea rows="3" value=${settings.system} placeholder="What the model should know or be" onInput=${(event) => session.set({ system: event.target.value })} />
    </label>
    <fieldset>
      <legend>How the answer is sampled</legend>
      <p class="note">Empty fields are as ${model ? model.id : "the model"} has them.</p>
      <div class="fields">
        ${SAMPLING.map(
          ({ name, label, ...limits }) => html`<label key=${name}>
            ${label}
            <input
              type="number"
              ...${limits}
              defaultValue=${settings.sampling[name] ?? ""}
              placeholder=${model?.sampling?.[name] ?? (name === "max_tokens" ? model?.max_model_len : "")}
              onInput=${(event) => setSampling(name, event.target.value)}
            />
          </label>`,
        )}
        <label>
          Thinking
          <select value=${settings.effort} onChange=${(event) => session.set({ effort: event.target.value })}>
            <option value="">default</option>
            ${EFFORTS.map((effort) => html`<option value=${effort}>${effort}</option>`)}
          </select>
        </label>
      </div>
    </fieldset>
    <details>
      <summary>Tools</summary>
      <label>
        Functions that the model may call, as OpenAI's API takes them (JSON)
        <textarea rows="6" spellcheck="false" class="mono" value=${settings.tools} onInput=${(event) => setTools(event.target.value)} />
      </label>
      ${trouble && html`<p class="error" role="alert">${trouble}</p>`}
    </details>
    <form onSubmit=${(event) => (event.preventDefault(), useNewKey())}><fieldset>
      <legend>Key</legend>
      <label>Key of this server, if it asks for one <input type="password" autocomplete="off" value=${key} onInput=${(event) => setKey(event.target.value)} /></label>
      <label class="check">
        <input type="checkbox" checked=${isKept} onChange=${(event) => setKept(event.target.checked)} />
        Keep it in this browser, where whoever uses it can read it
      </label>
    </fieldset></form>
    <p class="note"><a href="docs">The server's API</a> · <a href=${new URL("../vendor/licences.txt", import.meta.url).href}>Licences</a></p>
  <//>`;
}
