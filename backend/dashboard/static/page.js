// Draws the charts of a page from the JSON beside them, in the colours of the reader's scheme. Nothing is fetched.
"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  function colours() {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue("--" + name).trim();
    const names = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth"];
    return { of, roles: Object.fromEntries(names.map((name) => [name, of("chart-" + name)])) };
  }

  function faded(colour) {
    const value = parseInt(colour.slice(1), 16);
    return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, 0.18)`;
  }

  function painted(trace, roles) {
    const { role, ...made } = trace;
    const colour = roles[role] || roles.first;
    if (made.fill) made.fillcolor = faded(colour);
    made.line = { ...(made.line || {}), color: colour };
    made.marker = { ...(made.marker || {}), color: colour };
    if (made.error_y) made.error_y = { ...made.error_y, color: colour };
    return made;
  }

  function draw(source) {
    const place = document.getElementById(source.dataset.chart);
    const chart = JSON.parse(source.textContent);
    const { of, roles } = colours();
    const { target, ...given } = chart.layout;
    const axis = { gridcolor: of("line"), zerolinecolor: of("line"), linecolor: of("line"), automargin: true, fixedrange: true };
    const bars = chart.data.some((trace) => trace.orientation === "h");
    const rows = bars ? (chart.data[0].y || []).length : 0;
    const layout = {
      ...given,
      height: bars ? 110 + 30 * rows : 300,
      margin: { l: 48, r: 12, t: 12, b: 36 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, sans-serif", size: 13, color: of("ink") },
      legend: { orientation: "h", y: -0.2, traceorder: "normal" },
      showlegend: chart.data.filter((trace) => trace.name).length > 1,
      xaxis: { ...axis, ...(given.xaxis || {}) },
      yaxis: { ...axis, ...(given.yaxis || {}) },
      dragmode: false,
    };
    if (target !== undefined) {
      const line = { color: of("ink"), width: 1.5, dash: "dash" };
      layout.shapes = [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line }];
      const text = "dashed line: target " + (100 * target).toFixed(1).replace(/\.0$/, "") + " %";
      // Above the plot, where it hides no point.
      const above = { xref: "paper", x: 1, xanchor: "right", yref: "paper", y: 1, yanchor: "bottom" };
      layout.annotations = [{ ...above, text, showarrow: false }];
      layout.margin.t = 28;
    }
    const data = chart.data.map((trace) => painted(trace, roles));
    window.Plotly.react(place, data, layout, { displayModeBar: false, responsive: true });
  }

  function drawAll() {
    document.querySelectorAll("script[data-chart]").forEach(draw);
    document.documentElement.dataset.charts = "drawn";
  }

  if (window.Plotly) {
    drawAll();
    dark.addEventListener("change", drawAll);
  }
})();
