// Images of messages: those that are sent with one, and those that were.

import { html } from "../vendor/preact.js";
import { IconButton } from "./icons.js";

/** Images in a row; with `onRemove`, each can be taken away. */
export function Images({ addresses, onRemove }) {
  if (!addresses?.length) return null;
  return html`<ul class="images" aria-label=${onRemove ? "Images to send" : "Images"}>
    ${addresses.map(
      (address, place) => html`<li>
        <img src=${address} alt=${`Image ${place + 1}`} />
        ${onRemove && html`<${IconButton} icon="close" label=${`Remove image ${place + 1}`} onClick=${() => onRemove(place)} />`}
      </li>`,
    )}
  </ul>`;
}
