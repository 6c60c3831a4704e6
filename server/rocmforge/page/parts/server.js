// What the server does now, and did in the last minutes.

import { EVERY_MS, LONG_S, SHOWN } from "../data/figures.js";
import { html, useEffect, useReducer, useRef } from "../vendor/preact.js";
import uPlot from "../vendor/uplot.js";
import { IconButton } from "./icons.js";

const SHORT_S = 60; // of the plots at first

export function ServerPanel({ session, isOpen, onClose }) {
  const [, redraw] = useReducer((count) => count + 1, 0);
  const { figures, health, models } = session;
  useEffect(() => {
    if (!isOpen) return undefined;
    const ask = () => document.hidden || session.needsKey || session.measure();
    ask();
    const timer = setInterval(ask, EVERY_MS);
    figures.addEventListener("change", redraw);
    return () => {
      clearInterval(timer);
      figures.removeEventListener("change", redraw);
    };
  }, [isOpen]);
  if (!isOpen) return null;
  return html`<aside id="server" class="panel open" aria-label="What the server does">
    <header>
      <h2>Server</h2>
      <${IconButton} icon="close" label="Close the server's figures" onClick=${onClose} />
    </header>
    ${health && html`<${Device} health=${health} device=${session.device} />`}
    ${figures.trouble
      ? html`<p class="note">${figures.trouble}</p>`
      : SHOWN.filter(({ name, isRare }) => !isRare || figures.latest(name) !== undefined).map(
          (figure) => html`<${Figure} key=${figure.name} figure=${figure} figures=${figures} />`,
        )}
    ${models.length > 1 &&
    html`<h3>Models</h3>
      <ul class="models">
        ${models.map((model) => html`<li key=${model.id}><span>${model.id}</span> <span class="note">${model.state}</span></li>`)}
      </ul>`}
  </aside>`;
}

function Device({ health, device }) {
  return html`<div class="device">
    <p>${device ?? "The model is not loaded"}</p>
    ${health.is_fallback && html`<p class="note">No GPU is used: the reference backend computes on the processor, slowly. <code>rocmforge doctor</code> says why.</p>`}
    ${health.status !== "ok" && html`<p class="error">${health.status}: ${health.last_error ?? health.last_error_code ?? ""}</p>`}
  </div>`;
}

function Figure({ figure: { name, label, unit = "", most, hasGaps }, figures }) {
  const value = figures.latest(name);
  const shown = value === undefined ? "–" : `${rounded(value)} ${unit}`;
  return html`<section class="figure">
    <h3>${label}</h3>
    <p class="value">${shown}</p>
    <${Plot} times=${figures.times} values=${figures.series[name]} most=${most} hasGaps=${hasGaps} />
  </section>`;
}

const rounded = (value) =>
  value.toLocaleString("en", value < 100 ? { maximumSignificantDigits: 2 } : { maximumFractionDigits: 0 });

/** The course of a figure; its value is told beside it, so readers of screens lose nothing. */
function Plot({ times, values, most, hasGaps = false }) {
  const root = useRef();
  const plot = useRef();
  useEffect(() => {
    const colour = getComputedStyle(root.current).color;
    plot.current = new uPlot(
      {
        width: root.current.clientWidth,
        height: 40,
        padding: [3, 0, 2, 0],
        cursor: { show: false },
        legend: { show: false },
        axes: [{ show: false }, { show: false }],
        scales: { x: { time: false, range: (_, from, to) => [Math.max(to - LONG_S, Math.min(from, to - SHORT_S)), to] }, y: { range: (_, low, high) => [0, most ?? Math.max(1, high * 1.1)] } },
        series: [{}, { stroke: colour, fill: `${colour.replace(")", " / 0.15)").replaceAll(",", "")}`, width: 1.5, points: { show: hasGaps, size: 4, fill: colour }, spanGaps: true }],
      },
      [times, values],
      root.current,
    );
    return () => plot.current.destroy();
  }, []);
  useEffect(() => plot.current.setData([times, values]), [times]);
  return html`<div class="plot" ref=${root} aria-hidden="true" />`;
}
