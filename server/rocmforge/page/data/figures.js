// What the server does, from its Prometheus metrics: the last minutes, a point every other second.

export const EVERY_MS = 2000;
export const LONG_S = 300;
const POINTS = (1000 * LONG_S) / EVERY_MS;

/** Families of which the largest sample counts. */
const LARGEST = new Set(["kv_cache_usage_perc", "device_copy_bytes_per_second"]);

/** Adds the samples of all models up, by family; `_total` is left out. */
export function readMetrics(text) {
  const found = {};
  for (const line of text.split("\n")) {
    const match = /^rocmforge_(\w+?)(?:_total)?(?:\{.*\})? (\S+)$/.exec(line);
    if (match && !line.includes("_bucket{")) {
      const [, name, value] = match;
      const before = found[name] ?? 0;
      found[name] = LARGEST.has(name) ? Math.max(before, Number(value)) : before + Number(value);
    }
  }
  return found;
}

const perSecond = (name) => (now, before, seconds) => (now[name] - before[name]) / seconds;

/** What is shown. `value` is of two scrapes and the time between; undefined = nothing happened. */
export const SHOWN = [
  { name: "running", label: "Running", value: (now) => now.num_requests_running },
  { name: "waiting", label: "Waiting", value: (now) => now.num_requests_waiting },
  { name: "tokens", label: "Tokens/s", value: perSecond("generation_tokens") },
  { name: "prompt", label: "Prompt tokens/s", value: perSecond("prompt_tokens") },
  {
    name: "first",
    label: "First token",
    unit: "s",
    hasGaps: true,
    value: (now, before) => {
      const count = now.time_to_first_token_seconds_count - before.time_to_first_token_seconds_count;
      const sum = now.time_to_first_token_seconds_sum - before.time_to_first_token_seconds_sum;
      return count ? sum / count : undefined;
    },
  },
  {
    name: "blocks",
    label: "Blocks in use",
    unit: "%",
    most: 100,
    value: (now) => 100 * now.kv_cache_usage_perc,
  },
  {
    name: "bandwidth",
    label: "Of the memory's bandwidth",
    isRare: true, // not all backends tell
    unit: "%",
    most: 100,
    value: (now, before) => {
      const seconds = now.engine_device_seconds - before.engine_device_seconds;
      const bytes = now.engine_read_bytes - before.engine_read_bytes;
      return seconds ? ((100 * bytes) / seconds) / now.device_copy_bytes_per_second : undefined;
    },
  },
];

export class Figures extends EventTarget {
  times = [];
  series = Object.fromEntries(SHOWN.map(({ name }) => [name, []]));
  trouble = "";
  #last = null;

  take(text, time = Date.now() / 1000) {
    const now = readMetrics(text);
    // A restarted server counts from zero: what was before it is no longer there to compare with.
    const isLater = this.#last && now.prompt_tokens >= this.#last.now.prompt_tokens;
    if (isLater) {
      const seconds = time - this.#last.time;
      this.times = [...this.times, time].slice(-POINTS);
      for (const { name, value } of SHOWN) {
        const found = value(now, this.#last.now, seconds);
        const points = [...this.series[name], Number.isFinite(found) ? found : null];
        this.series[name] = points.slice(-POINTS);
      }
    }
    this.#last = { now, time };
    this.trouble = "";
    this.dispatchEvent(new Event("change"));
  }

  fail(trouble) {
    this.trouble = trouble;
    this.dispatchEvent(new Event("change"));
  }

  /** The newest value of a figure, and whether there was any. */
  latest(name) {
    return this.series[name].findLast((value) => value !== null);
  }
}
