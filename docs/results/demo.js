// A slider over training steps: the same tasks, played by two policies side by side.
"use strict";
(() => {
  const root = document.getElementById("demo");
  const element = (tag, text = "", style = "") => {
    const made = document.createElement(tag);
    made.textContent = text; // texts of a policy are never markup
    made.style.cssText = style;
    return made;
  };
  const label = element("label", "Training step ");
  const slider = element("input", "", "width:60%;vertical-align:middle");
  const shown = element("output", "0");
  const sides = element("div", "", "display:flex;gap:1.5rem;flex-wrap:wrap");
  Object.assign(slider, { type: "range", min: 0, max: DEMO.steps.length - 1, value: 0, id: "demo-step" });
  label.append(slider, " ", shown);
  root.append(label, sides);

  const draw = () => {
    const at = Number(slider.value);
    shown.textContent = String(DEMO.steps[at]);
    sides.replaceChildren(...Object.entries(DEMO.runs).map(([name, run]) => {
      const side = element("section", "", "flex:1;min-width:16rem");
      const { success, limit, games } = run[at];
      side.append(element("h3", `${name} horizon`), element("p", `turn limit ${limit}, success ${Math.round(100 * success)} %`));
      const bar = element("div", "", "background:#8883;height:.5rem");
      bar.append(element("div", "", `width:${100 * success}%;height:100%;background:#4caf50`));
      side.append(bar);
      for (const game of games) {
        side.append(element("strong", game.task), element("pre", game.turns.map(([said, heard]) => `${said.padEnd(3)} ${heard}`).join("\n")));
      }
      return side;
    }));
  };
  slider.addEventListener("input", draw);
  draw();
})();
