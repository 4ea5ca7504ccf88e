// The waveform: bars for what has arrived, in colour for what has been heard, a line where the ear is.

const BAR_PX = 3;
const STEP_PX = 5;
const FIRST_SPAN_S = 6;
const SPAN_GROWTH = 1.5; // in steps: a scale that changes with every chunk would make all bars shimmer

export class Waveform {
  #canvas;
  #take = null;

  constructor(canvas) {
    this.#canvas = canvas;
    new ResizeObserver(() => this.paint(this.#take)).observe(canvas);
    addEventListener("oscine-theme", () => this.paint(this.#take));
  }

  paint(take) {
    this.#take = take;
    const { clientWidth: width, clientHeight: height } = this.#canvas;
    const ratio = window.devicePixelRatio || 1;
    this.#canvas.width = Math.round(width * ratio);
    this.#canvas.height = Math.round(height * ratio);
    const pen = this.#canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const style = getComputedStyle(this.#canvas);
    const colour = (name) => style.getPropertyValue(`--wave-${name}`);
    if (!take) return this.#paintEmpty(pen, width, height, colour);

    const samplesPerPx = (spanS(take.receivedS) * take.rateHz) / width;
    const playedPx = take.played / samplesPerPx;
    for (let x = 0; x + BAR_PX <= width; x += STEP_PX) {
      const peak = peakBetween(take, x * samplesPerPx, (x + STEP_PX) * samplesPerPx);
      pen.fillStyle = peak === null ? colour("empty") : x < playedPx ? colour("played") : colour("waiting");
      bar(pen, x, height, peak ?? 0);
    }
    for (const gap of take.gaps) line(pen, gap / samplesPerPx, height, colour("gap"));
    if (take.running && take.played > 0) line(pen, playedPx, height, colour("head"));
  }

  #paintEmpty(pen, width, height, colour) {
    pen.fillStyle = colour("empty");
    for (let x = 0; x + BAR_PX <= width; x += STEP_PX) bar(pen, x, height, 0);
  }
}

function spanS(receivedS) {
  let span = FIRST_SPAN_S;
  while (span < receivedS) span *= SPAN_GROWTH;
  return span;
}

function peakBetween(take, fromSample, toSample) {
  if (fromSample >= take.received) return null;
  const first = Math.floor(fromSample / take.samplesPerPeak);
  const end = Math.max(Math.ceil(toSample / take.samplesPerPeak), first + 1);
  return Math.max(...take.peaks.slice(first, end));
}

function bar(pen, x, height, peak) {
  // The root lifts quiet speech: an ear's loudness is not linear either.
  const tall = Math.max(BAR_PX, Math.sqrt(peak) * (height - 8));
  pen.beginPath();
  pen.roundRect(x, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
  pen.fill();
}

function line(pen, x, height, colour) {
  pen.fillStyle = colour;
  pen.fillRect(x, 0, 2, height);
}
