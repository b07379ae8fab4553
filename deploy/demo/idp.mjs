// The demo's identity provider: npm's certified oidc-provider with four accounts and a sign-in page of its own.
//
//   node deploy/demo/idp.mjs FOLDER
//
// FOLDER is what deploy/demo/setup.py makes: idp.json (the port), users.json (re-read at each request), clients.json.
// keys.json and store.json are made here. It listens on 127.0.0.1 only: these accounts are for trying out.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { join } from 'node:path';
import Provider from 'oidc-provider';

import { HEADERS, problemPage, signedOutPage, signInPage, signOutPage } from './idp/pages.mjs';
import { Patience, People } from './idp/people.mjs';
import { adapterFor, Store } from './idp/store.mjs';

const ADDRESS = '127.0.0.1';
const LARGEST_FORM = 4096;
const HOUR = 3600;
const SCOPE = 'openid profile email groups offline_access';

const log = (...words) => console.log(new Date().toISOString(), ...words);

const folder = process.argv[2];
if (!folder) {
  console.error('usage: node idp.mjs FOLDER');
  process.exit(2);
}
const readJson = (name) => JSON.parse(readFileSync(join(folder, name), 'utf8'));

/** The signing key and the cookie key, made at the first start and never shared. */
function keys() {
  const path = join(folder, 'keys.json');
  if (!existsSync(path)) {
    const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
    const jwk = { ...privateKey.export({ format: 'jwk' }), use: 'sig', alg: 'RS256', kid: randomBytes(8).toString('hex') };
    writeFileSync(path, JSON.stringify({ cookie: randomBytes(32).toString('hex'), jwks: { keys: [jwk] } }), { mode: 0o600 });
  }
  return readJson('keys.json');
}

const { port } = readJson('idp.json');
const issuer = `http://${ADDRESS}:${port}`;
const clients = readJson('clients.json');
const home = clients[0]?.client_uri;
const people = new People(join(folder, 'users.json'));
const patience = new Patience();
const store = await Store.load(join(folder, 'store.json'), log);
const { cookie, jwks } = keys();

function send(ctx, body) {
  ctx.set(HEADERS);
  ctx.body = body;
}

async function findAccount(ctx, sub) {
  const person = await people.bySub(sub);
  return person && {
    accountId: sub,
    claims: async () => ({
      sub,
      preferred_username: person.login,
      name: person.name,
      email: `${person.login}@demo.invalid`,
      groups: person.groups,
    }),
  };
}

/** The hub is the university's own client: nobody is asked for consent, and one grant is used again. */
async function loadExistingGrant(ctx) {
  const { client, session, provider } = ctx.oidc;
  const known = session.grantIdFor(client.clientId);
  const existing = known && (await provider.Grant.find(known));
  if (existing?.accountId === session.accountId) {
    return existing;
  }
  const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
  grant.addOIDCScope(SCOPE);
  await grant.save();
  return grant;
}

const provider = new Provider(issuer, {
  adapter: adapterFor(store),
  clients,
  findAccount,
  loadExistingGrant,
  jwks,
  cookies: { keys: [cookie] },
  responseTypes: ['code'],
  scopes: SCOPE.split(' '),
  claims: { openid: ['sub'], profile: ['name', 'preferred_username'], email: ['email'], groups: ['groups'] },
  pkce: { required: () => true },
  issueRefreshToken: async () => true,
  ttl: {
    AccessToken: HOUR / 6,
    AuthorizationCode: 60,
    Grant: 14 * 24 * HOUR,
    IdToken: HOUR / 6,
    Interaction: HOUR / 4,
    RefreshToken: 14 * 24 * HOUR,
    Session: 14 * 24 * HOUR,
  },
  interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
  renderError: (ctx, out) => {
    send(ctx, problemPage('Sign-in failed', out.error_description ?? out.error, home));
  },
  features: {
    devInteractions: { enabled: false },
    revocation: { enabled: true },
    rpInitiatedLogout: {
      enabled: true,
      logoutSource: (ctx, form) => send(ctx, signOutPage(form)),
      postLogoutSuccessSource: (ctx) => send(ctx, signedOutPage(home)),
    },
  },
});
for (const event of ['server_error', 'authorization.error', 'grant.error', 'userinfo.error', 'end_session.error']) {
  provider.on(event, (ctx, error) => log(event, error.message, error.error_description ?? '', error.error_detail ?? ''));
}

/** A form's fields; undefined when it is larger than any of ours. */
async function formOf(request) {
  let body = '';
  for await (const part of request) {
    body += part;
    if (body.length > LARGEST_FORM) {
      return undefined;
    }
  }
  return new URLSearchParams(body);
}

function answer(response, status, body, headers = {}) {
  response.writeHead(status, { ...HEADERS, ...headers });
  response.end(body);
}

/** One try to sign in: the person, or what to say and with which status. */
async function tryToSignIn(login, password) {
  const wait = patience.wait(login);
  if (wait > 0) {
    const problem = `Too many wrong passwords for this account. Try again in ${wait} seconds.`;
    return { status: 429, problem, headers: { 'retry-after': String(wait) } };
  }
  const person = await people.check(login, password);
  if (!person) {
    patience.wrong(login);
    log('wrong account or password for', JSON.stringify(login));
    return { status: 401, problem: 'The account or the password is wrong. Check both and try again.' };
  }
  patience.right(login);
  return { person };
}

async function interaction(request, response) {
  let details;
  try {
    details = await provider.interactionDetails(request, response);
  } catch {
    const text = 'This sign-in has expired or was begun in another window.';
    return answer(response, 400, problemPage('Sign-in expired', text, home));
  }
  const client = clients.find(({ client_id: id }) => id === details.params.client_id)?.client_name ?? 'the hub';
  if (request.method !== 'POST') {
    return answer(response, 200, signInPage({ client }));
  }
  const form = await formOf(request);
  if (!form) {
    return answer(response, 413, problemPage('Sign-in failed', 'The form is too large.', home), { connection: 'close' });
  }
  const login = (form.get('login') ?? '').trim().toLowerCase();
  const { person, problem, status, headers } = await tryToSignIn(login, form.get('password') ?? '');
  if (!person) {
    return answer(response, status, signInPage({ client, login, problem }), headers);
  }
  log('signed in', JSON.stringify(login));
  return provider.interactionFinished(request, response, { login: { accountId: person.sub, remember: true } });
}

const callback = provider.callback();
const names = new Set([`${ADDRESS}:${port}`, `localhost:${port}`]);

async function handle(request, response) {
  const { pathname } = new URL(request.url, issuer);
  if (!names.has(request.headers.host)) {
    // another name that leads here is somebody else's page trying to read this provider
    return answer(response, 421, problemPage('Wrong address', `This is ${issuer}.`));
  }
  if (pathname === '/health') {
    response.writeHead(200, { 'content-type': 'application/json', 'cache-control': 'no-store' });
    return response.end('{"status":"ok"}');
  }
  return /^\/interaction\/[\w-]+$/.test(pathname) ? interaction(request, response) : callback(request, response);
}

const server = createServer((request, response) => {
  handle(request, response).catch((error) => {
    log('error', error.stack);
    if (!response.headersSent) {
      answer(response, 500, problemPage('Sign-in failed', 'The identity provider made an error; see its log.', home));
    }
  });
});
server.on('error', (error) => {
  const inUse = error.code === 'EADDRINUSE';
  console.error(inUse ? `Port ${port} on ${ADDRESS} is in use: stop what uses it, or move the demo with GPUCAMPUS_PORT` : error);
  process.exit(1);
});
for (const signal of ['SIGINT', 'SIGTERM']) {
  process.on(signal, () => {
    server.close(() => store.flush().finally(() => process.exit(0)));
    server.closeAllConnections();
  });
}
server.listen(port, ADDRESS, () => log('identity provider on', issuer));
