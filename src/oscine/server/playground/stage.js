// Receives takes and plays them: samples go in, and every change of a take's state happens here.

import { Player } from "./player.js";

export class Stage {
  take = null; // the one that is shown: playing, or played last
  #player = new Player((event) => this.#onPlayer(event));
  #tracks = new Map(); // track id -> {take, offset}: the track starts at this sample of the take
  #ids = new Map(); // take -> the id of its latest track
  #receiving = new Set(); // takes whose samples are still arriving; one without a track is not played
  #changed;
  #finished;
  #failed;

  // changed(take): paint it again. finished(take): it is complete or has ended early. failed(error): show it.
  constructor({ changed, finished, failed }) {
    this.#changed = changed;
    this.#finished = finished;
    this.#failed = failed;
  }

  get busy() {
    return this.#ids.size > 0 || this.#receiving.size > 0;
  }

  // Call it in a click or key handler: see Player.open.
  open(rateHz) {
    const silent = (error) => this.#failed(new Error(`This browser cannot play the sound: ${error.message}`));
    this.#player.open(rateHz).catch(silent);
  }

  begin(take) {
    this.#receiving.add(take);
    this.#newTrack(take, 0);
    if (!this.take?.running) this.take = take;
    this.#changed(take);
  }

  feed(take, pcm) {
    if (!this.#receiving.has(take) || pcm.length === 0) return;
    take.add(pcm);
    if (this.#ids.has(take)) this.#player.push(this.#ids.get(take), pcm);
    this.#changed(take);
  }

  // All samples have arrived.
  end(take) {
    if (!this.#receiving.delete(take)) return;
    take.complete = true;
    if (take.state === "speaking") take.state = "playing";
    this.#endTrack(take);
  }

  // The samples that arrived are still played: the listener hears how far it got.
  fail(take) {
    this.#receiving.delete(take);
    if (!take.running) return;
    take.state = "failed";
    this.#endTrack(take);
  }

  // Stops at once, including takes that wait for their turn.
  stop() {
    const silent = [...this.#receiving].filter((take) => !this.#ids.has(take));
    for (const take of [...this.#ids.keys(), ...silent]) if (take.running) take.state = "stopped";
    this.#receiving.clear();
    silent.forEach((take) => this.#settle(take));
    this.#player.flush();
    if (this.take) this.#changed(this.take);
  }

  replay(take) {
    this.seek(take, 0);
  }

  // Plays only this take, from a sample on. Others that are still arriving continue to arrive, silently.
  seek(take, sample) {
    const others = [...this.#ids.keys()].filter((other) => other !== take);
    this.#ids.clear();
    this.#tracks.clear();
    this.#player.flush();
    for (const other of others) if (!this.#receiving.has(other)) this.#settle(other);
    if (!take.running) take.outcome = take.state;
    const offset = Math.min(Math.max(0, Math.round(sample)), take.received);
    take.played = offset;
    take.state = this.#receiving.has(take) ? "speaking" : "playing";
    this.take = take;
    const id = this.#newTrack(take, offset);
    this.#player.push(id, take.samples().subarray(offset));
    if (!this.#receiving.has(take)) this.#player.end(id);
    this.#changed(take);
  }

  #newTrack(take, offset) {
    const id = this.#player.begin();
    this.#tracks.set(id, { take, offset });
    this.#ids.set(take, id);
    return id;
  }

  #endTrack(take) {
    if (this.#ids.has(take)) this.#player.end(this.#ids.get(take));
    else this.#settle(take);
    this.#changed(take);
  }

  #onPlayer(event) {
    const track = this.#tracks.get(event.id);
    if (!track) return; // replaced by another track
    const { take, offset } = track;
    if (event.type === "start") {
      this.take = take;
      take.audibleAt(event.atMs);
      if (take.state === "waiting") take.state = take.complete ? "playing" : "speaking";
    } else if (event.type === "dry") {
      take.dry = take.textOpen ? "text" : "sound";
    } else if (event.type === "gap") {
      (take.dry === "text" ? take.pauses : take.gaps).push(offset + event.at);
      take.dry = "";
    } else {
      take.played = event.played === undefined ? take.played : offset + event.played;
    }
    if (event.type === "end") {
      this.#tracks.delete(event.id);
      this.#ids.delete(take);
      this.#settle(take);
    }
    this.#changed(take);
  }

  #settle(take) {
    if (take.running) take.state = take.outcome;
    this.#finished(take);
    this.#changed(take);
  }
}
