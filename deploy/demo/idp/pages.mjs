// The provider's own pages: plain HTML that works with a keyboard, on a phone, in the dark, and without scripts.
import { createHash } from 'node:crypto';

const MARKUP = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };

/** Make any text safe between tags and in quoted attributes. */
export const escaped = (text) => String(text ?? '').replace(/[&<>"']/g, (mark) => MARKUP[mark]);

const STYLE = `
:root { color-scheme: light dark; --text: #1b1f24; --back: #f4f5f7; --card: #fff; --line: #6b7480; --accent: #1f5fae;
  --on-accent: #fff; --error: #9b1c1c; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8eaed; --back: #15181c; --card: #1f242a; --line: #8a94a0; --accent: #8ab8f0; --on-accent: #10151b;
    --error: #ffb4ab; }
}
* { box-sizing: border-box; }
body { margin: 0; font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); }
main { max-width: 24rem; margin: 8vh auto; padding: 1.5rem; background: var(--card); border-radius: .5rem; }
h1 { margin: 0 0 .25rem; font-size: 1.4rem; line-height: 1.25; }
p { margin: .5rem 0; }
label { display: block; margin-top: 1rem; font-weight: 600; }
input, button { width: 100%; min-height: 2.75rem; padding: .5rem .75rem; font: inherit; border-radius: .35rem; }
input { color: inherit; background: transparent; border: 1px solid var(--line); }
button { margin-top: 1.5rem; font-weight: 600; color: var(--on-accent); background: var(--accent); border: 0; cursor: pointer; }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
[role=alert] { padding: .5rem .75rem; color: var(--error); border: 1px solid; border-radius: .35rem; }
small, .note { font-size: .9rem; }
a { color: var(--accent); }
`;

// With this the sign-out goes on by itself; without scripts a person presses the button.
const SIGN_OUT = "document.getElementById('sign-out').click();";
const sha256 = (text) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`;

/** What every page is sent with: nothing from elsewhere, no framing, no keeping. */
export const HEADERS = {
  'content-type': 'text/html; charset=utf-8',
  'cache-control': 'no-store',
  'content-security-policy':
    `default-src 'none'; style-src ${sha256(STYLE)}; script-src ${sha256(SIGN_OUT)}; base-uri 'none'; frame-ancestors 'none'`,
  'referrer-policy': 'no-referrer',
  'x-content-type-options': 'nosniff',
};

const page = (title, body, script = '') => `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(title)}</title>
<style>${STYLE}</style>
</head>
<body>
<main>
<h1>${escaped(title)}</h1>
${body}
</main>
${script && `<script>${script}</script>`}
</body>
</html>
`;

/** The sign-in form; after a wrong try with the reason, the login kept, and the password to be typed again. */
export function signInPage({ client, login = '', problem = '' }) {
  const wrong = problem ? ' aria-invalid="true" aria-describedby="problem"' : '';
  const first = problem && login ? '' : ' autofocus';
  const second = problem && login ? ' autofocus' : '';
  return page(
    'Demo University sign-in',
    `<p>To continue to ${escaped(client)}.</p>
${problem && `<p role="alert" id="problem">${escaped(problem)}</p>`}
<form method="post">
<label for="login">Account</label>
<input id="login" name="login" type="text" value="${escaped(login)}" required maxlength="64" autocomplete="username"
  autocapitalize="none" autocorrect="off" spellcheck="false"${wrong}${first}>
<label for="password">Password</label>
<input id="password" name="password" type="password" required maxlength="256" autocomplete="current-password"${wrong}${second}>
<button type="submit">Sign in</button>
</form>
<p class="note">The demo's accounts and passwords are printed by <code>make run</code>.</p>`,
  );
}

/** `form` is the provider's own, which carries its protection against forged requests. */
export function signOutPage(form) {
  return page(
    'Sign out',
    `<p>Sign out of Demo University, too?</p>
${form}
<button id="sign-out" type="submit" form="op.logoutForm" name="logout" value="yes">Sign out</button>`,
    SIGN_OUT,
  );
}

export function signedOutPage(home) {
  const link = home ? `<p><a href="${escaped(home)}">Back to the hub</a></p>` : '';
  return page('Signed out', `<p>You are signed out of Demo University.</p>\n${link}`);
}

export function problemPage(title, text, home) {
  const link = home ? `<p><a href="${escaped(home)}">Start again from the hub</a></p>` : '';
  return page(title, `<p role="alert">${escaped(text)}</p>\n${link}`);
}
