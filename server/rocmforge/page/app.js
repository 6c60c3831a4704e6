// The page: its parts around one session.

import { readStored, writeStored } from "./data/api.js";
import { shown } from "./data/conversation.js";
import { Session } from "./data/session.js";
import { Composer } from "./parts/composer.js";
import { IconButton } from "./parts/icons.js";
import { Messages } from "./parts/messages.js";
import { ServerPanel } from "./parts/server.js";
import { KeyDialogue, SettingsDialogue } from "./parts/settings.js";
import { Sidebar } from "./parts/sidebar.js";
import { Welcome } from "./parts/welcome.js";
import { html, render, useEffect, useLayoutEffect, useReducer, useRef, useState } from "./vendor/preact.js";

const NEAR_END = 80; // pixels
const THEMES = ["system", "light", "dark"];
const PANEL = "rocmforge.panel";

function App({ session }) {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const [isListOpen, setListOpen] = useState(false);
  const [isPanelOpen, setPanelOpen] = useState(readStored(PANEL) === "open");
  const [hasSettings, setSettings] = useState(false);
  useEffect(() => {
    let isAsked = false;
    const later = () => {
      if (isAsked) return;
      isAsked = true;
      requestAnimationFrame(() => ((isAsked = false), redraw()));
    };
    session.addEventListener("change", later);
    const onKeyDown = (event) => {
      if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
      if (event.target.closest?.(".editor, .rename")) return;
      setListOpen(false);
      session.stop();
    };
    addEventListener("keydown", onKeyDown);
    document.addEventListener("visibilitychange", () => document.hidden || session.refresh());
    session.start();
  }, []);
  useEffect(() => {
    document.title = session.current.title ? `${session.current.title} · ROCmForge` : "ROCmForge";
  }, [session.current.title]);
  const showPanel = (isOpen) => {
    writeStored(PANEL, isOpen ? "open" : null);
    setPanelOpen(isOpen);
  };
  return html`<a class="skip" href="#message" onClick=${focusComposer}>To the message</a>
    <${Sidebar} session=${session} isOpen=${isListOpen} onClose=${() => setListOpen(false)} />
    ${isListOpen && html`<div class="veil" onClick=${() => setListOpen(false)} />`}
    <div class="centre">
      <header class="top">
        <${IconButton} icon="menu" label="Conversations" class="icon-button only-narrow" aria-expanded=${isListOpen} aria-controls="conversations" onClick=${() => setListOpen(true)} />
        <${ModelChoice} session=${session} />
        <span class="fill" />
        <${ThemeButton} />
        <${IconButton} icon="tune" label="Settings" onClick=${() => setSettings(true)} />
        <${IconButton} icon="gauge" label="What the server does" aria-expanded=${isPanelOpen} aria-controls="server" onClick=${() => showPanel(!isPanelOpen)} />
      </header>
      <main>
        <${Loading} session=${session} />
        ${[session.trouble, session.storeTrouble].map((text) => text && html`<p class="trouble" role="alert">${text}</p>`)}
        <${Scrolled} session=${session} />
        <div class="foot"><div class="bottom"><${Composer} session=${session} /></div></div>
      </main>
    </div>
    <${ServerPanel} session=${session} isOpen=${isPanelOpen} onClose=${() => showPanel(false)} />
    ${session.needsKey && html`<${KeyDialogue} session=${session} />`}
    ${hasSettings && html`<${SettingsDialogue} session=${session} onClose=${() => setSettings(false)} />`}
    <div class="unseen" role="status">${session.notice}</div>`;
}

function focusComposer(event) {
  event.preventDefault();
  document.querySelector(".composer textarea").focus();
}

/** The conversation. It follows an answer that is being written, unless one has scrolled away. */
function Scrolled({ session }) {
  const frame = useRef();
  const follows = useRef(true);
  const count = shown(session.current).length;
  useLayoutEffect(() => {
    follows.current = true;
    frame.current.scrollTop = frame.current.scrollHeight;
    const observer = new ResizeObserver(() => {
      if (follows.current) frame.current.scrollTop = frame.current.scrollHeight;
    });
    observer.observe(frame.current.firstElementChild);
    return () => observer.disconnect();
  }, [session.current.id, count]);
  const onScroll = () => {
    const { scrollHeight, scrollTop, clientHeight } = frame.current;
    follows.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
  };
  return html`<div class="scrolled" ref=${frame} tabindex="-1" onScroll=${onScroll}>
    <div class="column">${count === 0 ? html`<${Welcome} session=${session} />` : html`<${Messages} session=${session} />`}</div>
  </div>`;
}

function ModelChoice({ session }) {
  const { model, models } = session;
  if (!models.length) return html`<span class="brand">ROCmForge</span>`;
  return html`<select class="model" aria-label="Model" value=${model.id} onChange=${(event) => session.set({ model: event.target.value })}>
    ${models.map(({ id, status }) => html`<option value=${id}>${id}${status.value === "unloaded" ? " (not loaded)" : ""}</option>`)}
  </select>`;
}

/** What loading is doing; for a model that is not loaded, how it would be. */
function Loading({ session }) {
  const { model } = session;
  if (!model || model.status.value === "loaded") return null;
  const { value, failed, reason, stage, progress } = model.status;
  if (value === "loading") {
    const percent = Math.round(100 * progress);
    return html`<div class="loading">
      <label>${model.id} is being loaded: ${stage} <progress max="100" value=${percent}>${percent} %</progress></label>
    </div>`;
  }
  return html`<div class="loading">
    ${session.loadTrouble && html`<span role="alert">${session.loadTrouble}</span>`}
    <span>${failed ? `${model.id} could not be loaded: ${reason}` : `${model.id} is loaded with the first message.`}</span>
    <button type="button" onClick=${() => session.load(model)}>Load it now</button>
  </div>`;
}

function ThemeButton() {
  const root = document.documentElement;
  const [theme, setTheme] = useState(root.dataset.theme);
  const turn = () => {
    const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    root.dataset.theme = next;
    writeStored("rocmforge.theme", next);
    setTheme(next);
  };
  const icon = { system: "system", light: "sun", dark: "moon" }[theme];
  return html`<${IconButton} icon=${icon} label=${`Colours: ${theme}`} onClick=${turn} />`;
}

render(html`<${App} session=${new Session()} />`, document.body);
