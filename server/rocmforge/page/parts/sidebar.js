// The conversations that this browser keeps.

import { exported } from "../data/conversation.js";
import { html, useRef, useState } from "../vendor/preact.js";
import { Icon, IconButton } from "./icons.js";

export function Sidebar({ session, isOpen, onClose }) {
  const file = useRef();
  const [trouble, setTrouble] = useState("");
  const open = (conversation) => {
    session.open(conversation);
    onClose();
  };
  const take = async () => {
    setTrouble("");
    try {
      for (const each of file.current.files) await session.import(each);
    } catch (error) {
      setTrouble(error.message);
    }
    file.current.value = "";
  };
  return html`<aside id="conversations" class=${`sidebar ${isOpen ? "open" : ""}`} aria-label="Conversations">
    <div class="sidebar-head">
      <button type="button" class="new" onClick=${() => (session.startAnew(), onClose())}><${Icon} name="plus" /> New chat</button>
      <${IconButton} icon="close" label="Close the conversations" class="icon-button only-narrow" onClick=${onClose} />
    </div>
    <nav aria-label="Kept conversations">
      <ul>
        ${session.conversations.map(
          (each) => html`<${Entry} key=${each.id} session=${session} conversation=${each} onOpen=${() => open(each)} />`,
        )}
      </ul>
    </nav>
    ${!session.conversations.length && html`<p class="note">Conversations are kept in this browser only.</p>`}
    ${trouble && html`<p class="error" role="alert">${trouble}</p>`}
    <div class="buttons">
      <button type="button" onClick=${() => file.current.click()}>Import</button>
      <button type="button" disabled=${!session.conversations.length} onClick=${() => save(session.conversations)}>Export</button>
      <input ref=${file} type="file" accept=".json,application/json" hidden aria-label="File of conversations" onChange=${take} />
    </div>
  </aside>`;
}

function Entry({ session, conversation, onOpen }) {
  const [isNamed, setNamed] = useState(false);
  const title = conversation.title || "New chat";
  const isCurrent = session.current.id === conversation.id;
  if (isNamed) {
    const done = (event) => (session.rename(conversation, event.target.value), setNamed(false));
    const onKeyDown = (event) => {
      if (event.key === "Enter") event.target.blur();
      if (event.key === "Escape") setNamed(false);
    };
    return html`<li>
      <input class="rename" aria-label="Name of the conversation" ref=${(field) => field?.focus()} defaultValue=${title} onBlur=${done} onKeyDown=${onKeyDown} />
    </li>`;
  }
  return html`<li class=${isCurrent ? "current" : ""}>
    <button type="button" class="entry" aria-current=${isCurrent ? "true" : undefined} onClick=${onOpen}>${title}</button>
    <${IconButton} icon="edit" label=${`Rename: ${title}`} onClick=${() => setNamed(true)} />
    <${IconButton}
      icon="trash"
      label=${`Delete: ${title}`}
      onClick=${() => confirm(`Delete "${title}"? It is kept nowhere else.`) && session.remove(conversation)}
    />
  </li>`;
}

function save(conversations) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([exported(conversations)], { type: "application/json" }));
  link.download = `rocmforge-conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
