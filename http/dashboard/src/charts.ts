/** Small line charts of a machine's metrics, drawn as SVG: a shape to look at, its latest value in words. */
import { html, svg, type TemplateResult } from "lit-html";
import type { MetricSeries } from "./model";
import { bytes, size } from "./ui";

const WIDTH = 320;
const HEIGHT = 64;

type Point = MetricSeries["points"][number];

export function charts(series: MetricSeries): TemplateResult {
  const { points } = series;
  if (!points.length) return html`<p class="empty">Nothing measured yet.</p>`;
  return html`<div class="charts">
    ${chart("Processor", points, [(point) => point.cpu_percent], (value) => `${value.toFixed(0)} %`, 100)}
    ${chart("Memory", points, [(point) => point.memory_used_mib ?? 0], size)}
    ${chart("Disk read, written", points, [(point) => point.disk_read_bytes, (point) => point.disk_written_bytes], rate)}
    ${chart("Network in, out", points, [(point) => point.net_received_bytes, (point) => point.net_sent_bytes], rate)}
  </div>`;
}

function rate(value: number): string {
  return `${bytes(value)}/s`;
}

function chart(label: string, points: Point[], lines: ((point: Point) => number)[], text: (value: number) => string, least = 1): TemplateResult {
  const most = Math.max(least, ...lines.flatMap((line) => points.map(line)));
  const last = points.at(-1) as Point;
  const step = WIDTH / Math.max(1, points.length - 1);
  const path = (line: (point: Point) => number) =>
    points.map((point, index) => `${(index * step).toFixed(1)},${(HEIGHT - 2 - (line(point) / most) * (HEIGHT - 4)).toFixed(1)}`).join(" ");
  const latest = lines.map((line) => text(line(last))).join(", ");
  return html`<figure><figcaption>${label} <b>${latest}</b></figcaption>
    <svg viewBox="0 0 ${WIDTH} ${HEIGHT}" preserveAspectRatio="none" role="img" aria-label="${label}: ${latest}">
      ${lines.map((line, index) => svg`<polyline class="line-${index}" points=${path(line)}></polyline>`)}
    </svg></figure>`;
}
