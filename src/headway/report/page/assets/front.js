// The fronts of the chosen run, one decision at a time.

const slider = document.getElementById("decision");

function drawFront() {
  if (!slider) return;
  const fronts = page.fronts[Number(chosen.run)];
  const section = document.getElementById("fronts");
  section.querySelector(".front").hidden = !fronts;
  section.querySelector(".none").hidden = Boolean(fronts);
  if (!fronts) return;
  const last = fronts.frames.length - 1;
  slider.max = String(last);
  const place = Math.min(Number(slider.value), last);
  const frame = fronts.frames[place];
  const where = `Decision ${place + 1} of ${last + 1}: step ${frame.step.toLocaleString("en")}, after ${frame.time}`;
  slider.setAttribute("aria-valuetext", where);
  document.getElementById("earlier").disabled = place === 0;
  document.getElementById("later").disabled = place === last;
  const title = document.createElement("strong");
  title.textContent = where;
  document.getElementById("decision-words").replaceChildren(title, frame.words);
  const layout = document.getElementById("same-axes").checked ? fronts.layout : { ...fronts.layout, xaxis: frame.xaxis };
  draw(document.getElementById("front-plot"), frame.data, layout, `${where}. ${frame.words}`);
}

function moveFront(by) {
  slider.value = String(Number(slider.value) + by);
  drawFront();
}

function firstSwitch() {
  const fronts = page.fronts[Number(chosen.run)];
  return fronts ? Math.max(0, fronts.frames.findIndex((frame) => frame.isSwitch)) : 0;
}
