// Where people write.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { Icon } from "./icons.js";

export function Composer({ session }) {
  const [text, setText] = useState("");
  const area = useRef();
  const isBusy = session.isBusy();
  const canSend = Boolean(text.trim()) && Boolean(session.model) && !isBusy;
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current.focus(); // a keyboard would cover a phone
  }, [session.current.id]);

  const send = (event) => {
    event?.preventDefault();
    if (isBusy) {
      session.stop();
    } else if (canSend) {
      session.send(text.trim());
      setText("");
    }
    area.current.focus();
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!isBusy) send();
    }
  };
  return html`<form class="composer" onSubmit=${send}>
    <textarea
      id="message"
      ref=${area}
      rows="1"
      value=${text}
      aria-label="Your message"
      placeholder="Write a message"
      onInput=${(event) => setText(event.target.value)}
      onKeyDown=${onKeyDown}
    />
    <button class="send" aria-label=${isBusy ? "Stop" : "Send"} title=${isBusy ? "Stop (Esc)" : "Send (Enter)"} disabled=${!isBusy && !canSend}>
      <${Icon} name=${isBusy ? "stop" : "send"} />
    </button>
  </form>`;
}
