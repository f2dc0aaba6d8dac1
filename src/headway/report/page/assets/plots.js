// Draws, in each place for a figure, the one that the reader has chosen.

const page = JSON.parse(document.getElementById("data").textContent);
const chosen = { run: "0", against: "time" };
const config = {
  displayModeBar: touch.matches ? false : undefined,
  doubleClick: touch.matches ? false : "reset+autosize",  // a tap may count as two clicks, and would zoom
  displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
};

function figureOf(name) {
  const figure = page.figures[name];
  return figure.options[figure.by === null ? "all" : chosen[figure.by]];
}

function draw(place, data, layout, alt) {
  place.setAttribute("aria-label", alt);
  return Plotly.react(place, coloured(drawLegend(place, data).map(fitted)), themed(layout), config);
}

function drawFigures(wanted = () => true) {
  for (const place of document.querySelectorAll("[data-figure]")) {
    if (!wanted(page.figures[place.dataset.figure])) continue;
    const figure = figureOf(place.dataset.figure);
    place.hidden = !figure;
    place.parentElement.querySelector(".none").hidden = Boolean(figure);
    legendOf(place).hidden = !figure;
    if (figure) draw(place, figure.data, figure.layout, figure.alt);
  }
}
