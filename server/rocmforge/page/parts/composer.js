// Where people write.

import { html, useEffect, useRef, useState } from "../vendor/preact.js";
import { asAddress, filesOf, MOST_IMAGES } from "../data/images.js";
import { Icon, IconButton } from "./icons.js";
import { Images } from "./images.js";

export function Composer({ session }) {
  const [text, setText] = useState("");
  const [images, setImages] = useState([]);
  const [trouble, setTrouble] = useState("");
  const area = useRef();
  const picker = useRef();
  const isBusy = session.isBusy();
  const takesImages = Boolean(session.model?.capabilities.includes("images"));
  const hasContent = Boolean(text.trim()) || images.length > 0;
  const problem = images.length && !takesImages ? `${session.model?.id} takes no images.` : trouble;
  const canSend = hasContent && Boolean(session.model) && !isBusy && (takesImages || !images.length);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current.focus(); // a keyboard would cover a phone
  }, [session.current.id]);

  const send = (event) => {
    event?.preventDefault();
    if (isBusy) {
      session.stop();
    } else if (canSend) {
      session.send(text.trim(), images);
      setText("");
      setImages([]);
      setTrouble("");
    }
    area.current.focus();
  };
  const add = async (files) => {
    try {
      if (!takesImages) throw new Error(`${session.model?.id ?? "The model"} takes no images.`);
      const found = await Promise.all(files.slice(0, MOST_IMAGES).map(asAddress));
      setImages((before) => [...before, ...found].slice(0, MOST_IMAGES));
      const isFull = images.length + files.length > MOST_IMAGES;
      setTrouble(isFull ? `A message may have ${MOST_IMAGES} images.` : "");
    } catch (error) {
      setTrouble(error.message);
    }
    area.current.focus();
  };
  const take = (event, transfer) => {
    const files = filesOf(transfer);
    if (!files) return; // text goes where it belongs
    event.preventDefault();
    add(files);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!isBusy) send();
    }
  };
  return html`<form
    class="composer"
    onSubmit=${send}
    onPaste=${(event) => take(event, event.clipboardData)}
    onDrop=${(event) => take(event, event.dataTransfer)}
    onDragOver=${(event) => event.dataTransfer?.types.includes("Files") && event.preventDefault()}
  >
    <${Images} addresses=${images} onRemove=${(place) => (setImages(images.filter((_, other) => other !== place)), area.current.focus())} />
    ${problem && html`<p class="trouble" role="alert">${problem}</p>`}
    ${takesImages &&
    html`<${IconButton} icon="image" label="Add images" onClick=${() => picker.current.click()} />
      <input
        type="file"
        ref=${picker}
        accept="image/jpeg,image/png,image/webp,image/gif"
        multiple
        hidden
        onChange=${(event) => (add([...event.target.files]), (event.target.value = ""))}
      />`}
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
