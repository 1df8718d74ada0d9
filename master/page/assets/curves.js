// Curves of the last 30 minutes, one value a second (uPlot).
import { el, number } from "./dom.js";
import { color, onTheme } from "./theme.js";

/** A chart. `series`: [{label, color}], `shown` formats a value. `set(times, values)` gives it data. */
export function chart(title, series, shown = number) {
  const value = el("span");
  const box = el("div");
  const node = el("figure", { class: "card chart", role: "group", "aria-label": title }, el("h3", null, title, value), box);
  node.style.margin = "0";
  let plot = null, data = [[]];
  const axis = () => ({ stroke: color("--soft"), font: "11px system-ui", grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } });
  const draw = () => {
    if (plot) plot.destroy();
    plot = null;
    const width = box.clientWidth;
    if (!width) return;
    const options = {
      width, height: 130, legend: { show: false }, padding: [6, 4, 0, 0],
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { y: { range: (_plot, low, high) => [Math.min(0, low || 0), high > 0 ? high * 1.08 : 1] } },
      axes: [{ ...axis(), space: 70, size: 22, values: (_plot, ticks) => ticks.map((one) => hour(one, ticks[1] - ticks[0] < 60)) },
        { ...axis(), size: 48, space: 28, values: (_plot, ticks) => ticks.map((one) => (Number.isInteger(one) ? shown(one) : "")) }],
      series: [{}, ...series.map((one) => ({ label: one.label, stroke: color(one.color), width: 1.5, spanGaps: false, points: { show: false } }))],
      hooks: { setCursor: [(one) => label(one.cursor.idx)] },
    };
    plot = new window.uPlot(options, data, box);
  };
  const label = (at) => {
    const last = at === null || at === undefined ? data[0].length - 1 : at;
    const when = at === null || at === undefined ? "" : new Date(data[0][last] * 1000).toLocaleTimeString("en-GB") + "  ";
    value.textContent = data[0].length ? when + series.map((one, n) => `${series.length > 1 ? one.label + " " : ""}${show(data[n + 1][last], shown)}`).join(" · ") : "";
  };
  const resize = new ResizeObserver(() => { if (!plot || Math.abs(plot.width - box.clientWidth) > 1) draw(); });
  resize.observe(box);
  const noTheme = onTheme(draw);
  return {
    node,
    set(times, values) {
      data = [times, ...values];
      if (plot) plot.setData(data); else draw();
      label(plot ? plot.cursor.idx : null);
    },
    end() { resize.disconnect(); noTheme(); if (plot) plot.destroy(); },
  };
}

/** The time of a tick; with seconds where ticks are less than a minute apart. */
function hour(second, withSeconds) {
  return new Date(second * 1000).toLocaleTimeString("en-GB").slice(0, withSeconds ? 8 : 5);
}

function show(value, shown) {
  return value === null || value === undefined ? "–" : shown(value);
}
