// The waveform of one take: bars for the samples received, in colour where they were played. Click or use the arrow
// keys to play from another position.

const BAR_PX = 3;
const STEP_PX = 5;
const MIN_SPAN_S = 6;
const SPAN_GROWTH = 1.5; // in steps: a scale that changed with every chunk would make all bars shimmer
const KEY_STEP_S = 1;

export class Waveform {
  #canvas;
  #seek;
  #take = null;
  #pointerPx = null;

  // seek(take, sample): the listener wants to hear it from there.
  constructor(canvas, { seek }) {
    this.#canvas = canvas;
    this.#seek = seek;
    new ResizeObserver(() => this.paint(this.#take)).observe(canvas);
    addEventListener("oscine-theme", () => this.paint(this.#take));
    canvas.addEventListener("pointerdown", (event) => this.#press(event));
    canvas.addEventListener("pointermove", (event) => this.#point(event.offsetX));
    canvas.addEventListener("pointerleave", () => this.#point(null));
    canvas.addEventListener("pointerup", (event) => this.#release(event));
    canvas.addEventListener("keydown", (event) => this.#key(event));
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
    this.#describe();
    if (!take) return paintEmpty(pen, width, height, colour);

    const samplesPerPx = this.#samplesPerPx;
    const playedPx = take.played / samplesPerPx;
    for (let x = 0; x + BAR_PX <= width; x += STEP_PX) {
      const peak = peakBetween(take, x * samplesPerPx, (x + STEP_PX) * samplesPerPx);
      pen.fillStyle = peak === null ? colour("empty") : x < playedPx ? colour("played") : colour("waiting");
      bar(pen, x, height, peak ?? 0);
    }
    for (const gap of take.gaps) line(pen, gap / samplesPerPx, height, colour("gap"));
    if (take.running && take.played > 0) line(pen, playedPx, height, colour("head"));
    if (this.#pointerPx !== null && this.#seekable) line(pen, this.#pointerPx, height, colour("waiting"));
  }

  // A live take that still grows shares the loudspeaker with the next ones: it cannot be rearranged.
  get #seekable() {
    return Boolean(this.#take?.received && !(this.#take.live && this.#take.running));
  }

  get #samplesPerPx() {
    return (spanS(this.#take.receivedS) * this.#take.rateHz) / Math.max(1, this.#canvas.clientWidth);
  }

  #press(event) {
    if (!this.#seekable || event.button !== 0) return;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#point(event.offsetX);
  }

  #release(event) {
    if (!this.#canvas.hasPointerCapture(event.pointerId)) return;
    this.#canvas.releasePointerCapture(event.pointerId);
    const sample = event.offsetX * this.#samplesPerPx;
    if (sample <= this.#take.received) this.#seek(this.#take, sample);
  }

  #point(x) {
    this.#pointerPx = x;
    if (this.#take) this.paint(this.#take);
  }

  #key(event) {
    if (!this.#seekable || event.ctrlKey || event.metaKey || event.altKey) return;
    const take = this.#take;
    const step = KEY_STEP_S * take.rateHz;
    const places = { ArrowRight: take.played + step, ArrowLeft: take.played - step, Home: 0, Enter: 0, " ": 0 };
    if (!(event.key in places)) return;
    event.preventDefault();
    this.#seek(take, Math.min(places[event.key], take.received));
  }

  #describe() {
    const take = this.#take;
    const values = {
      "aria-disabled": String(!this.#seekable),
      "aria-valuemax": (take?.receivedS ?? 0).toFixed(1),
      "aria-valuenow": (take?.playedS ?? 0).toFixed(1),
      "aria-valuetext": take ? `${take.playedS.toFixed(1)} of ${take.receivedS.toFixed(1)} seconds` : "No sound yet",
    };
    for (const [name, value] of Object.entries(values)) {
      if (this.#canvas.getAttribute(name) !== value) this.#canvas.setAttribute(name, value);
    }
    this.#canvas.tabIndex = this.#seekable ? 0 : -1;
  }
}

function paintEmpty(pen, width, height, colour) {
  pen.fillStyle = colour("empty");
  for (let x = 0; x + BAR_PX <= width; x += STEP_PX) bar(pen, x, height, 0);
}

function spanS(receivedS) {
  let span = MIN_SPAN_S;
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
  // The square root lifts quiet speech, as the ear does.
  const tall = Math.max(BAR_PX, Math.sqrt(peak) * (height - 8));
  pen.beginPath();
  pen.roundRect(x, (height - tall) / 2, BAR_PX, tall, BAR_PX / 2);
  pen.fill();
}

function line(pen, x, height, colour) {
  pen.fillStyle = colour;
  pen.fillRect(x, 0, 2, height);
}
