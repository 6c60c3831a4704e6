// Drawings of the buttons, which are named by their labels.

import { html } from "../vendor/preact.js";

const PATHS = {
  menu: "M4 7h16M4 12h16M4 17h16",
  plus: "M12 5v14M5 12h14",
  gauge: "M4 18a9 9 0 1 1 16 0M12 15l4-5",
  tune: "M4 8h9M19 8h1M4 16h1M11 16h9M16 8m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0M8 16m-2.5 0a2.5 2.5 0 1 0 5 0a2.5 2.5 0 1 0-5 0",
  sun: "M12 8a4 4 0 1 0 0 8a4 4 0 1 0 0-8M12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.4 1.4M17.6 17.6L19 19M5 19l1.4-1.4M17.6 6.4L19 5",
  moon: "M20 14a8 8 0 0 1-10-10a8 8 0 1 0 10 10",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  send: "M12 19V5M6 11l6-6l6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  again: "M20 11a8 8 0 1 0-2 6M20 5v6h-6",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  back: "M14 6l-6 6l6 6",
  on: "M10 6l6 6l-6 6",
  image: "M4 5h16v14H4zM4 16l5-5l4 4l3-3l4 4M15 9h.01",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  close: "M6 6l12 12M18 6L6 18",
  check: "M5 12l5 5L20 7",
};

export function Icon({ name }) {
  return html`<svg class="icon" viewBox="0 0 24 24" aria-hidden="true"><path d=${PATHS[name]} /></svg>`;
}

/** A button that shows a drawing and says its label. */
export function IconButton({ icon, label, ...rest }) {
  return html`<button type="button" class="icon-button" aria-label=${label} title=${label} ...${rest}>
    <${Icon} name=${icon} />
  </button>`;
}
