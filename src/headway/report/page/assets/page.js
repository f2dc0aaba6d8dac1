// The reader's choices: run, horizontal axis, decision.

const picker = document.getElementById("run");

function showRun() {
  if (picker) chosen.run = picker.value;
  let found = false;
  for (const part of document.querySelectorAll("[data-run]")) {
    part.hidden = part.dataset.run !== chosen.run;
    found ||= !part.hidden;
  }
  for (const part of document.querySelectorAll("[data-run-none]")) part.hidden = found;
  if (slider) {
    slider.max = String((page.fronts[Number(chosen.run)]?.frames.length ?? 1) - 1);
    slider.value = String(firstSwitch());
  }
  drawFront();
}

function drawAll() {
  drawFigures();
  drawFront();
}

picker?.addEventListener("change", () => {
  showRun();
  drawFigures((figure) => figure.by === "run");
});
for (const radio of document.querySelectorAll("[name=against]")) {
  radio.addEventListener("change", () => {
    chosen.against = radio.value;
    drawFigures((figure) => figure.by === "against");
  });
}
slider?.addEventListener("input", drawFront);
document.getElementById("earlier")?.addEventListener("click", () => moveFront(-1));
document.getElementById("later")?.addEventListener("click", () => moveFront(1));
document.getElementById("same-axes")?.addEventListener("change", drawFront);
dark.addEventListener("change", drawAll);
narrow.addEventListener("change", drawAll);

showRun();
drawFigures();
