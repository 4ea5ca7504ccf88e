// Finished takes in IndexedDB, so that the history survives a reload. Bounded by count and size; the oldest go first.
// Where the browser allows no storage, everything works until the page is closed.

const NAME = "oscine";
const TAKES = "takes";
const MAX_TAKES = 20;
const MAX_BYTES = 64 * 2 ** 20;

export class TakeStore {
  #database = open();

  // Oldest first: [{id, ...record}].
  async all() {
    try {
      const records = await (await this.#takes("readonly")).getAll();
      return records.filter((record) => record.samples instanceof Int16Array);
    } catch {
      return [];
    }
  }

  // The new id, and the ids that had to go; a null id: not stored.
  async add(record) {
    try {
      const id = await (await this.#takes("readwrite")).add(record);
      return { id, removed: await this.#prune() };
    } catch {
      return { id: null, removed: [] };
    }
  }

  async remove(id) {
    await (await this.#takes("readwrite")).delete(id);
  }

  async #prune() {
    const records = (await this.all()).reverse(); // newest first
    const removed = [];
    let bytes = 0;
    for (const [index, { id, samples }] of records.entries()) {
      bytes += samples.byteLength;
      if (index > 0 && (index >= MAX_TAKES || bytes > MAX_BYTES)) removed.push(id);
    }
    await Promise.all(removed.map((id) => this.remove(id)));
    return removed;
  }

  // One transaction for one request, as promises.
  async #takes(mode) {
    const store = (await this.#database).transaction(TAKES, mode).objectStore(TAKES);
    const promised = (name) => (...values) => done(store[name](...values));
    return { getAll: promised("getAll"), add: promised("add"), delete: promised("delete") };
  }
}

function open() {
  const opening = new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TAKES, { keyPath: "id", autoIncrement: true });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  opening.catch(() => {}); // each use handles it
  return opening;
}

function done(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}
