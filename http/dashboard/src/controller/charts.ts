/** Small charts drawn as SVG: a shape to look at, its latest value in words. */
import { html, svg, type TemplateResult } from "lit-html";
import type { MetricSeries } from "./model";
import type { Month } from "./networking";
import { bytes, size } from "../shared/ui";

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

function chart(
  label: string,
  points: Point[],
  lines: ((point: Point) => number)[],
  text: (value: number) => string,
  least = 1,
): TemplateResult {
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

const BAR = 20;
const SLOT = 30;

/** Transfer by month, newest first as the API has it, drawn oldest first: received below, sent on top. */
export function months(all: Month[]): TemplateResult {
  const [latest] = all;
  if (!latest || !all.some((month) => month.samples)) return html`<p class="empty">No traffic was counted yet.</p>`;
  const shown = all.slice(0, 12).reverse();
  const most = Math.max(1, ...shown.map((month) => month.received_bytes + month.sent_bytes));
  const high = (value: number) => (value / most) * (HEIGHT - 2);
  return html`<figure class="months">
    <figcaption><span><span class="key received">Received</span><span class="key sent">Sent</span></span> <b>${latest.period}: ${bytes(latest.received_bytes)}, ${bytes(latest.sent_bytes)}</b></figcaption>
    <svg viewBox="0 0 ${12 * SLOT} ${HEIGHT}" preserveAspectRatio="none" role="img"
      aria-label=${shown.map((month) => `${month.period}: ${bytes(month.received_bytes)} received, ${bytes(month.sent_bytes)} sent`).join("; ")}>
      ${shown.map((month, index) => {
        const [received, sent] = [high(month.received_bytes), high(month.sent_bytes)];
        const left = (12 - shown.length + index) * SLOT + (SLOT - BAR) / 2;
        return svg`<g><title>${month.period}: ${bytes(month.received_bytes)} received, ${bytes(month.sent_bytes)} sent</title>
          <rect class="ground" x=${left} y="0" width=${BAR} height=${HEIGHT}></rect>
          <rect class="received" x=${left} y=${HEIGHT - received} width=${BAR} height=${received}></rect>
          <rect class="sent" x=${left} y=${HEIGHT - received - sent} width=${BAR} height=${sent}></rect></g>`;
      })}
    </svg>
    <div class="labels" aria-hidden="true">${Array.from({ length: 12 }, (_, slot) => {
      const month = shown[slot - (12 - shown.length)];
      return html`<span>${month ? new Date(`${month.period}-15T00:00:00Z`).toLocaleString(undefined, { month: "short", timeZone: "UTC" }) : ""}</span>`;
    })}</div></figure>`;
}

/** One bar of parts of a whole, each with its name and count next to it. `of`: what the whole is. */
export function shares(label: string, parts: { name: string; count: number }[], of: number): TemplateResult {
  let before = 0;
  const whole = Math.max(of, 1);
  const words =
    parts
      .filter((part) => part.count)
      .map((part) => `${part.count.toLocaleString()} ${part.name}`)
      .join(", ") || "nothing held";
  return html`<svg class="shares" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="${label}: ${words}">
    ${parts.map((part) => {
      const wide = part.count ? Math.max(0.7, (part.count / whole) * 100) : 0;
      const rect = svg`<rect class=${part.name} x=${before} y="0" width=${wide} height="8"></rect>`;
      before += wide;
      return rect;
    })}</svg>`;
}
