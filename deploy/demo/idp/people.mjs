// The accounts of the demo: who there is, whose password is right, and how often it may be wrong.
import { scrypt, timingSafeEqual } from 'node:crypto';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';

const derive = promisify(scrypt);
const WRONG_ALLOWED = 5;
const FORGET_AFTER_MS = 60_000;
const NAMES_REMEMBERED = 1000;

/** The file is read at each question, so that a change of groups or `"disabled": true` holds at once. */
export class People {
  #path;

  constructor(path) {
    this.#path = path;
  }

  async #all() {
    return JSON.parse(await readFile(this.#path, 'utf8'));
  }

  /** The person with a login, unless there is none or it is disabled. */
  async byLogin(login) {
    const all = await this.#all();
    const person = Object.hasOwn(all, login) ? all[login] : undefined;
    return person && !person.disabled ? { login, ...person } : undefined;
  }

  async bySub(sub) {
    const found = Object.entries(await this.#all()).find(([, person]) => person.sub === sub && !person.disabled);
    return found && { login: found[0], ...found[1] };
  }

  /** The person whose login and password these are, else undefined; both take the same time. */
  async check(login, password) {
    const person = await this.byLogin(login);
    const right = await matches(password, person?.password ?? NOBODY);
    return right ? person : undefined;
  }
}

// the hash of no password: an unknown login must not be answered faster than a wrong password
const NOBODY = `scrypt:16384:8:1:AAAAAAAAAAAAAAAAAAAAAA==:${Buffer.alloc(32).toString('base64')}`;

async function matches(password, stored) {
  const [kind, n, r, p, salt, hash] = stored.split(':');
  if (kind !== 'scrypt') {
    return false;
  }
  const wanted = Buffer.from(hash, 'base64');
  const options = { N: Number(n), r: Number(r), p: Number(p) };
  const given = await derive(password, Buffer.from(salt, 'base64'), wanted.length, options);
  return timingSafeEqual(given, wanted);
}

/** Counts wrong passwords for each login, whether it exists or not. */
export class Patience {
  #wrong = new Map(); // login -> { count, until }

  /** Seconds until a login may be tried again; 0 when it may be now. */
  wait(login) {
    const entry = this.#wrong.get(login);
    if (!entry || entry.until <= Date.now()) {
      this.#wrong.delete(login);
      return 0;
    }
    return entry.count < WRONG_ALLOWED ? 0 : Math.ceil((entry.until - Date.now()) / 1000);
  }

  wrong(login) {
    const count = (this.#wrong.get(login)?.count ?? 0) + 1;
    this.#wrong.delete(login); // to the end: the first in the map is the longest ago
    this.#wrong.set(login, { count, until: Date.now() + FORGET_AFTER_MS });
    if (this.#wrong.size > NAMES_REMEMBERED) {
      this.#wrong.delete(this.#wrong.keys().next().value);
    }
  }

  right(login) {
    this.#wrong.delete(login);
  }
}
