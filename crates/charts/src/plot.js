// Options that all charts share. A classic script, as uPlot is: the live page loads it, the report has it inline.
"use strict";

window.plotting = (() => {
  const COLOURS = ["--ink", "--quiet", "--hair", "--track", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6"];

  /** A function from a colour's name to a value that a canvas understands: `light-dark()` is resolved. */
  function colours() {
    const probe = document.createElement("span");
    probe.hidden = true;
    document.body.append(probe);
    const found = new Map();
    for (const name of COLOURS) {
      probe.style.color = `var(${name})`;
      found.set(name, getComputedStyle(probe).color);
    }
    probe.remove();
    return (name) => found.get(name);
  }

  /** An axis with a grid and without ticks. */
  function axis(colour) {
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const stroke = colour("--quiet");
    return { stroke, font, labelFont: font, ticks: { show: false }, grid: { stroke: colour("--hair"), width: 1 } };
  }

  /** Points of a series: a value between two gaps has no line, so it gets a dot. */
  function points(colour) {
    return { show: true, size: 3, fill: colour, filter: alone };
  }

  function alone(plot, index) {
    const values = plot.data[index];
    const isGap = (it) => values[it] === null || values[it] === undefined;
    return values.flatMap((_, at) => (!isGap(at) && isGap(at - 1) && isGap(at + 1) ? [at] : []));
  }

  return { colours, axis, points };
})();
