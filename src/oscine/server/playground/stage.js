// What is heard now: takes go in, samples go to the player, and every change of a take's state happens here.

import { Player } from "./player.js";

export class Stage {
  take = null; // the one that is shown: being heard, or the last one
  #player = new Player((event) => this.#hear(event));
  #takes = new Map(); // track id -> take
  #ids = new Map(); // take -> track id
  #changed;
  #finished;
  #failed;

  // changed(take): worth painting again. finished(take): it will not change any more. failed(error): to be shown.
  constructor({ changed, finished, failed }) {
    this.#changed = changed;
    this.#finished = finished;
    this.#failed = failed;
  }

  get busy() {
    return this.#ids.size > 0;
  }

  // In a click or key: see Player.open.
  open(rateHz) {
    const silent = (error) => this.#failed(new Error(`This browser cannot play the sound: ${error.message}`));
    this.#player.open(rateHz).catch(silent);
  }

  begin(take) {
    const id = this.#player.begin();
    this.#takes.set(id, take);
    this.#ids.set(take, id);
    if (!this.take?.running) this.take = take;
    this.#changed(take);
  }

  feed(take, pcm) {
    if (!this.#ids.has(take) || pcm.length === 0) return;
    take.add(pcm);
    this.#player.push(this.#ids.get(take), pcm);
    this.#changed(take);
  }

  // All of it has come.
  end(take) {
    if (!this.#ids.has(take)) return;
    take.complete = true;
    if (take.state === "speaking") take.state = "playing";
    this.#player.end(this.#ids.get(take));
    this.#changed(take);
  }

  // What came is still played: the listener hears how far it got.
  fail(take) {
    if (!take.running) return;
    take.state = "failed";
    if (this.#ids.has(take)) this.#player.end(this.#ids.get(take));
    this.#changed(take);
  }

  // At once, whatever waits behind it too.
  stop() {
    for (const take of this.#ids.keys()) if (take.running) take.state = "stopped";
    this.#player.flush();
    if (this.take) this.#changed(this.take);
  }

  replay(take) {
    this.stop();
    take.outcome = take.state;
    take.played = 0;
    take.state = "playing";
    this.take = take;
    this.begin(take);
    this.#player.push(this.#ids.get(take), take.samples());
    this.#player.end(this.#ids.get(take));
  }

  #hear(event) {
    const take = this.#takes.get(event.id);
    if (!take || this.#ids.get(take) !== event.id) return; // stopped, and already played again
    if (event.type === "start") {
      this.take = take;
      take.heardAt(event.atMs);
      if (take.state === "waiting") take.state = take.complete ? "playing" : "speaking";
    } else if (event.type === "dry") {
      take.dry = take.textOpen ? "text" : "sound";
    } else if (event.type === "gap") {
      (take.dry === "text" ? take.pauses : take.gaps).push(event.at);
      take.dry = "";
    } else {
      take.played = event.played ?? take.played;
    }
    if (event.type === "end") this.#leave(event.id, take);
    this.#changed(take);
  }

  #leave(id, take) {
    this.#takes.delete(id);
    this.#ids.delete(take);
    if (take.running) take.state = take.outcome;
    this.#finished(take);
  }
}
