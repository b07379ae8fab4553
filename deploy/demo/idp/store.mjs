// Keeps the provider's sessions, grants and tokens in one file, so that a restart signs nobody out.
//
// Everything is in memory; each change is written before the provider goes on, changes that come together in one write,
// and a write replaces the file as a whole. Entries that have expired are dropped at each write.
import { open, readFile, rename } from 'node:fs/promises';

const now = () => Math.floor(Date.now() / 1000);

export class Store {
  #entries = new Map(); // "Model:id" -> { payload, expires } with expires in seconds, absent for never
  #path;
  #writing = Promise.resolve();
  #waiting = null; // the write that has not begun yet; what changes until then is in it

  constructor(path) {
    this.#path = path;
  }

  /** Read what an earlier run left. A file that cannot be read is set aside: people sign in again. */
  static async load(path, log) {
    const store = new Store(path);
    try {
      const saved = JSON.parse(await readFile(path, 'utf8'));
      for (const [key, entry] of Object.entries(saved)) {
        store.#entries.set(key, entry);
      }
    } catch (error) {
      if (error.code !== 'ENOENT') {
        log(`${path} cannot be read (${error.message}); it is set aside, and everybody signs in again`);
        await rename(path, `${path}.broken`);
      }
    }
    return store;
  }

  get(key) {
    const entry = this.#entries.get(key);
    return entry && !(entry.expires <= now()) ? entry.payload : undefined;
  }

  find(model, matches) {
    for (const key of this.#entries.keys()) {
      const payload = key.startsWith(`${model}:`) ? this.get(key) : undefined;
      if (payload && matches(payload)) {
        return payload;
      }
    }
    return undefined;
  }

  set(key, payload, expiresIn) {
    this.#entries.set(key, { payload, expires: expiresIn ? now() + expiresIn : undefined });
    return this.flush();
  }

  /** Delete by key, or everything whose payload matches. */
  drop(which) {
    for (const [key, entry] of this.#entries) {
      if (typeof which === 'string' ? key === which : which(entry.payload)) {
        this.#entries.delete(key);
      }
    }
    return this.flush();
  }

  flush() {
    this.#waiting ??= this.#writing
      .catch(() => {}) // an earlier failure was told to those who waited for it
      .then(() => {
        this.#waiting = null;
        return this.#write();
      });
    this.#writing = this.#waiting;
    return this.#waiting;
  }

  async #write() {
    for (const [key, entry] of this.#entries) {
      if (entry.expires <= now()) {
        this.#entries.delete(key);
      }
    }
    const file = await open(`${this.#path}.new`, 'w', 0o600);
    try {
      await file.writeFile(JSON.stringify(Object.fromEntries(this.#entries)));
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(`${this.#path}.new`, this.#path);
  }
}

/** The adapter class that oidc-provider makes one of for each of its models. */
export function adapterFor(store) {
  return class Adapter {
    constructor(model) {
      this.model = model;
    }

    #key(id) {
      return `${this.model}:${id}`;
    }

    async upsert(id, payload, expiresIn) {
      await store.set(this.#key(id), payload, expiresIn);
    }

    async find(id) {
      return store.get(this.#key(id));
    }

    async findByUid(uid) {
      return store.find(this.model, (payload) => payload.uid === uid);
    }

    async findByUserCode(userCode) {
      return store.find(this.model, (payload) => payload.userCode === userCode);
    }

    async consume(id) {
      const payload = store.get(this.#key(id));
      if (payload) {
        payload.consumed = now();
        await store.flush();
      }
    }

    async destroy(id) {
      await store.drop(this.#key(id));
    }

    async revokeByGrantId(grantId) {
      await store.drop((payload) => payload.grantId === grantId);
    }
  };
}
