// Replaces the variables of the style sheet in figures by their colours in light or dark mode.
"use strict";

const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 640px)");
const touch = matchMedia("(pointer: coarse)");

function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

function coloured(value) {
  if (typeof value === "string") {
    const match = /^var\((--[^)]+)\)$/.exec(value);
    return match ? colour(match[1]) : value;
  }
  if (Array.isArray(value)) return value.map(coloured);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, each]) => [name, coloured(each)]));
  }
  return value;
}

// Labels of a phone's width: half a plot, since they stand to the left or right of a point.
const NARROW_LABEL = 25;

function rewrapped(text) {
  const lines = [""];
  for (const word of text.replaceAll("<br>", " ").split(" ")) {
    const longer = `${lines.at(-1)} ${word}`.trim();
    if (longer.length <= NARROW_LABEL) lines[lines.length - 1] = longer;
    else lines.push(word);
  }
  return lines.join("<br>");
}

function fitted(trace) {
  if (!narrow.matches || !Array.isArray(trace.text)) return trace;
  return { ...trace, text: trace.text.map(rewrapped) };
}

function themed(layout) {
  const axis = {
    gridcolor: "var(--grid)", linecolor: "var(--edge)", zerolinecolor: "var(--grid)", automargin: true,
    spikecolor: "var(--muted)", spikethickness: 1, spikedash: "solid",
    title: { standoff: 8, font: { size: 12 } }, tickfont: { size: narrow.matches ? 10 : 11.5 },
  };
  const base = {
    paper_bgcolor: "var(--panel)", plot_bgcolor: "var(--panel)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', Arial, sans-serif", color: "var(--text)", size: 12 },
    hoverlabel: { bgcolor: "var(--panel)", bordercolor: "var(--muted)", font: { color: "var(--text)", size: narrow.matches ? 11 : 12 }, align: "left" },
    hovermode: "x unified", xaxis: axis, yaxis: axis,
    showlegend: false,
    margin: { l: narrow.matches ? 40 : 56, r: 12, t: 12, b: 44 },
    dragmode: touch.matches ? false : "zoom",  // a finger on a plot scrolls the page
  };
  const pointing = narrow.matches ? { hoversubplots: "single" } : {};  // a label with all rows is wider than a phone
  return coloured({ ...layout, ...pointing, template: { layout: base } });
}
