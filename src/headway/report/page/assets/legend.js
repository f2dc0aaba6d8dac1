// The legend: it wraps on a phone, and its entries are buttons that a keyboard reaches.

const SHAPES = { square: "square", diamond: "diamond", "circle-open": "ring" };

function plainName(name) {
  return name.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
}

function swatch(trace) {
  const mark = document.createElement("span");
  const isLine = trace.type === "scatter" && !trace.mode?.includes("markers");
  const shape = isLine ? "line" : trace.type === "bar" ? "square" : SHAPES[trace.marker.symbol] ?? "dot";
  mark.className = `swatch ${shape}`;
  mark.style.setProperty("--key", (trace.mode?.includes("lines") ? trace.line : trace.marker).color);
  if (isLine && trace.line.dash && trace.line.dash !== "solid") mark.classList.add("dashed");
  mark.setAttribute("aria-hidden", "true");
  return mark;
}

function legendOf(place) {
  let list = place.parentElement.querySelector(".legend");
  if (!list) {
    list = document.createElement("ul");
    list.className = "legend";
    place.before(list);
  }
  return list;
}

function drawLegend(place, data) {
  const hidden = (place.hiddenNames ??= new Set());
  const entries = data.filter((trace, at) => trace.showlegend !== false
    && data.findIndex((other) => other.name === trace.name && other.showlegend !== false) === at);
  legendOf(place).replaceChildren(...entries.map((trace) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(swatch(trace), plainName(trace.name));
    button.setAttribute("aria-pressed", String(!hidden.has(trace.name)));
    button.addEventListener("click", () => toggle(place, trace.name, button));
    const item = document.createElement("li");
    item.append(button);
    return item;
  }));
  return data.map((trace) => (hidden.has(trace.name) ? { ...trace, visible: false } : trace));
}

function toggle(place, name, button) {
  const hides = !place.hiddenNames.delete(name);
  if (hides) place.hiddenNames.add(name);
  button.setAttribute("aria-pressed", String(!hides));
  const traces = place.data.flatMap((trace, at) => (trace.name === name ? [at] : []));
  Plotly.restyle(place, { visible: !hides }, traces);
}
