// Keeps an open page up to date. The page works without it.
//
// A WebSocket says that something has changed; the parts that are marked
// data-live are then fetched as the server writes them and put in place of the
// old ones. Nothing happens while nobody sees the page.

const root = document.getElementById('gpushare');
const prefix = root.dataset.prefix;
const badge = document.getElementById('stale');
const AT_MOST_EVERY = 1000; // ms between two looks
const AT_LEAST_EVERY = 20_000; // ms; ages and measurements change by themselves
const LOGGED_OUT = 1008;

/** The sections' text as the server wrote it, by id: what is the same is left alone. */
const written = new Map();
/** When each part was fetched last. */
const looked = new Map();
let socket = null;
let failures = 0;
let again = 0;
let next = 0;
let fetching = false;
let missed = false; // a change came while parts were fetched
let fetched = 0;

/** Write moments in the reader's own zone and habit. */
function localise(part) {
  for (const time of part.querySelectorAll('time[datetime]')) {
    const when = new Date(time.dateTime);
    time.title = when.toLocaleString();
    if (time.matches('.gs-span')) {
      continue; // it says how long that is from now
    }
    const today = when.toDateString() === new Date().toDateString();
    time.textContent = when.toLocaleString(
      undefined,
      today
        ? { timeStyle: 'short' }
        : { dateStyle: 'short', timeStyle: 'short' }
    );
  }
}

/** Whether somebody types in it just now; a tick is kept anyway. */
function isEdited(part) {
  const active = document.activeElement;
  return (
    part.contains(active) &&
    active.matches(
      'input:not([type=hidden], [type=checkbox]), select, textarea'
    )
  );
}

function remember(part) {
  for (const section of part.querySelectorAll('section[id]')) {
    written.set(section.id, section.innerHTML);
  }
}

/** Show the boxes that tick all others of a form: without a script they could not. */
function offerAll(part) {
  for (const all of part.querySelectorAll('input[data-all]')) {
    const boxes = [
      ...part.querySelectorAll(`input[form="${all.dataset.all}"]`)
    ];
    all.hidden = false;
    all.checked = boxes.length > 0 && boxes.every(box => box.checked);
  }
}

/** Put newer content into an element; what is open or ticked stays so, as focus and scrolling do. */
function replace(old, newer) {
  const focused = old.contains(document.activeElement)
    ? document.activeElement.id || old.id
    : null;
  const open = [...old.querySelectorAll('details[open][id]')].map(d => d.id);
  const ticked = [...old.querySelectorAll('input[form]:checked')].map(
    box => box.id
  );
  const scrolled = [...old.querySelectorAll('.gs-scroll')].map(box => [
    box.scrollLeft,
    box.scrollTop
  ]);
  localise(newer);
  old.replaceChildren(...newer.childNodes);
  for (const id of open) {
    document.getElementById(id)?.setAttribute('open', '');
  }
  for (const id of ticked) {
    const box = document.getElementById(id);
    if (box) {
      box.checked = true;
    }
  }
  offerAll(old);
  old.querySelectorAll('.gs-scroll').forEach((box, place) => {
    [box.scrollLeft, box.scrollTop] = scrolled[place] ?? [0, 0];
  });
  if (focused !== null) {
    (document.getElementById(focused) ?? old).focus({ preventScroll: true });
  }
}

/** Take from a newer text of a part the sections that differ. */
function update(part, text) {
  const { body } = new DOMParser().parseFromString(text, 'text/html');
  const old = [...part.querySelectorAll('section[id]')];
  const newer = [...body.querySelectorAll('section[id]')];
  const names = sections => sections.map(section => section.id).join();
  const texts = newer.map(section => section.innerHTML);
  if (names(old) !== names(newer)) {
    if (!isEdited(part)) {
      newer.forEach((section, place) => written.set(section.id, texts[place]));
      replace(part, body);
    }
    return;
  }
  newer.forEach((section, place) => {
    const { id } = section;
    if (written.get(id) !== texts[place] && !isEdited(old[place])) {
      written.set(id, texts[place]);
      replace(old[place], section);
    }
  });
}

/** Fetch one part; false where the server does not give it. */
async function look(part) {
  const address = new URL(location.href);
  address.hash = '';
  address.searchParams.set('part', part.dataset.part);
  if (root.dataset.host) {
    // The page goes on with its host, whichever would be chosen now.
    address.searchParams.set('host', root.dataset.host);
  }
  const answer = await fetch(address, {
    headers: { 'X-XSRFToken': root.dataset.xsrf },
    redirect: 'manual'
  });
  if (answer.type === 'opaqueredirect' || answer.status === 403) {
    // To the login: a page that is opened gets there by itself, this one cannot.
    stop();
    return false;
  }
  if (!answer.ok) {
    return false;
  }
  update(part, await answer.text());
  return true;
}

/** Fetch all parts that change; at most once a second. */
function refresh() {
  if (next || document.hidden) {
    missed = fetching; // what is fetched may be from before this change
    return;
  }
  const wait = Math.max(0, fetched + AT_MOST_EVERY - Date.now());
  next = setTimeout(async () => {
    fetched = Date.now();
    fetching = true;
    missed = false;
    let good = true;
    try {
      for (const part of document.querySelectorAll('[data-live]')) {
        const last = looked.get(part) ?? 0;
        if ('slow' in part.dataset && fetched - last < AT_LEAST_EVERY) {
          continue;
        }
        looked.set(part, fetched);
        good = (await look(part)) && good;
      }
    } catch {
      good = false;
    }
    next = 0;
    fetching = false;
    tell(good);
    if (missed) {
      refresh();
    }
  }, wait);
}

/** Say whether what is shown can be believed. */
function tell(good) {
  if (socket === 'ended') {
    return;
  }
  const live = socket?.readyState === WebSocket.OPEN;
  root.toggleAttribute('data-stale', !good);
  badge.hidden = good && live;
  badge.textContent = good
    ? 'No live updates; this page asks every 20 seconds'
    : 'Not up to date; trying again';
}

/** The login has ended: no more tries. */
function stop() {
  const old = socket;
  socket = 'ended';
  clearTimeout(again);
  if (old instanceof WebSocket) {
    old.close();
  }
  root.toggleAttribute('data-stale', true);
  badge.hidden = false;
  badge.textContent = 'Not up to date: reload this page to log in again';
}

function connect() {
  if (socket || document.hidden) {
    return;
  }
  const address = new URL(`${prefix}live`, location.href);
  address.protocol = address.protocol.replace('http', 'ws');
  address.searchParams.set('host', root.dataset.host ?? '');
  socket = new WebSocket(address);
  socket.onmessage = () => {
    failures = 0;
    refresh();
  };
  socket.onclose = event => {
    if (socket === 'ended') {
      return;
    }
    socket = null;
    if (event.code === LOGGED_OUT) {
      stop();
      return;
    }
    if (document.hidden) {
      return;
    }
    failures += 1;
    // With a jitter, or all pages come back at once when the service does.
    const pause = Math.min(60_000, 1000 * 2 ** Math.min(failures, 6));
    again = setTimeout(connect, pause * (0.6 + 0.8 * Math.random()));
    refresh();
  };
}

function seen() {
  if (document.hidden) {
    clearTimeout(again);
    if (socket instanceof WebSocket) {
      const old = socket;
      socket = null;
      old.onclose = null;
      old.close();
    }
  } else {
    connect();
  }
}

localise(document);
if (document.querySelector('[data-live]')) {
  document.querySelectorAll('[data-live]').forEach(remember);
  document.addEventListener('visibilitychange', seen);
  setInterval(() => {
    if (Date.now() - fetched > AT_LEAST_EVERY && socket !== 'ended') {
      refresh();
    }
  }, AT_LEAST_EVERY / 4);
  connect();
}
for (const part of document.querySelectorAll('[data-slow]')) {
  looked.set(part, Date.now());
}
offerAll(document);
document.addEventListener('change', event => {
  const { all } = event.target.dataset;
  if (all) {
    for (const box of document.querySelectorAll(`input[form="${all}"]`)) {
      box.checked = event.target.checked;
    }
  } else if (event.target.matches('input[form]')) {
    offerAll(document);
  }
});
