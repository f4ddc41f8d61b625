// Runs in each page before the page's own scripts. It tracks pending work (requests, short timers, new nodes), so that
// `run` can tell when the page is settled, and performs the interactions of a reader.
(() => {
  if (window !== window.top || window.__openafm) return;
  const MAX_TIMER_MS = 1000; // longer timers are polling, not loading
  const MAX_NESTING = 5; // a chain of timers longer than this is a loop
  const ACTION_MS = 1500; // limit of settling after one interaction

  const now = performance.now.bind(performance);
  const setTimer = window.setTimeout.bind(window);
  const clearTimer = window.clearTimeout.bind(window);
  const nextFrame = window.requestAnimationFrame.bind(window);
  const sleep = ms => new Promise(resolve => setTimer(resolve, ms));
  const frames = () => Promise.race([new Promise(done => nextFrame(() => nextFrame(done))), sleep(60)]);

  let pending = 0, changedAt = now(), nesting = 0;
  const timers = new Map();
  const touch = () => { changedAt = now(); };
  const begin = () => { pending++; let open = true; return () => { if (open) { open = false; pending--; touch(); } }; };
  const track = promise => { const end = begin(); promise.then(end, end); return promise; };
  const isLoading = () => document.readyState !== 'complete' || pending > 0;
  const isBusy = () => isLoading() || timers.size > 0;

  // Each page starts without what an earlier page of its site stored.
  try { localStorage.clear(); sessionStorage.clear(); } catch (error) { /* opaque origins have no storage */ }
  window.open = () => null;

  // A short timer has an entry with its due time until it fires. `advance` fires the next one early: see `settle`.
  for (const name of ['setTimeout', 'setInterval']) {
    const original = window[name].bind(window);
    window[name] = (callback, delay, ...values) => {
      const wait = Math.max(0, Number(delay) || 0);
      if (typeof callback !== 'function' || wait > MAX_TIMER_MS || nesting >= MAX_NESTING) {
        return original(callback, delay, ...values);
      }
      const level = nesting + 1;
      const fire = () => {
        if (timers.delete(id)) touch();
        const outer = nesting;
        nesting = level;
        try { callback.apply(window, values); } finally { nesting = outer; }
      };
      const id = original(fire, wait);
      timers.set(id, { due: now() + wait, early: () => { if (name === 'setTimeout') clearTimer(id); fire(); } });
      return id;
    };
  }
  for (const name of ['clearTimeout', 'clearInterval']) {
    const original = window[name].bind(window);
    window[name] = id => { timers.delete(id); original(id); };
  }
  const advance = () => {
    const next = [...timers.values()].reduce((first, each) => (each.due < first.due ? each : first));
    setTimer(next.early); // on its own, so that an error of the page stays in the page
  };
  const fetchOriginal = window.fetch;
  window.fetch = (...values) => track(fetchOriginal.apply(window, values));
  for (const name of ['json', 'text', 'arrayBuffer', 'blob']) {
    const original = Response.prototype[name];
    Response.prototype[name] = function () { return track(original.call(this)); };
  }
  const sendOriginal = XMLHttpRequest.prototype.send;
  XMLHttpRequest.prototype.send = function (...values) {
    const end = begin();
    this.addEventListener('loadend', end, { once: true });
    try { return sendOriginal.apply(this, values); } catch (error) { end(); throw error; }
  };

  // Only new nodes count: attributes and texts change forever in animations and clocks.
  const observer = new MutationObserver(records => {
    for (const record of records) {
      for (const node of record.addedNodes) {
        touch();
        if (node.nodeName === 'SCRIPT' && node.src && document.readyState === 'complete' && !/json/.test(node.type)) {
          const end = begin();
          node.addEventListener('load', end);
          node.addEventListener('error', end);
        }
      }
    }
  });
  const OBSERVED = { childList: true, subtree: true };
  observer.observe(document, OBSERVED);
  const attachOriginal = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function (options) {
    const root = attachOriginal.call(this, { ...options, mode: 'open' });
    observer.observe(root, OBSERVED);
    return root;
  };
  window.addEventListener('load', touch);

  // Which events the page listens to: without a listener, an interaction changes nothing and is left out.
  const SCROLL_EVENTS = ['scroll', 'scrollend', 'wheel'];
  const CLICK_EVENTS = ['click', 'mousedown', 'mouseup', 'pointerdown', 'pointerup', 'touchstart', 'touchend'];
  const listened = new Set();
  const listenOriginal = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...values) {
    listened.add(type);
    return listenOriginal.call(this, type, ...values);
  };
  const observeOriginal = IntersectionObserver.prototype.observe;
  IntersectionObserver.prototype.observe = function (...values) {
    listened.add('scroll');
    return observeOriginal.apply(this, values);
  };
  const isListened = (types, elements) => types.some(type => listened.has(type))
    || elements.some(element => element && types.some(type => element[`on${type}`]));
  const hearsScroll = () => isListened(SCROLL_EVENTS, [window, document, document.body, document.documentElement]);
  const hearsClick = element => {
    const path = [window, document];
    for (let each = element; each; each = each.parentElement) path.push(each);
    return isListened(CLICK_EVENTS, path);
  };

  /**
   * Resolve to true once nothing is pending and nothing was added for `quiet` ms; to false at the deadline. If only timers
   * are left, the page waits for nothing but time: they are fired early, in the order in which they are due.
   */
  const settle = (quiet, deadline) => new Promise(resolve => {
    const check = () => {
      const time = now(), rest = quiet - (time - changedAt);
      if (!isBusy() && rest <= 0) { resolve(true); return; }
      if (time >= deadline) { resolve(false); return; }
      if (!isLoading() && rest <= 0) advance();
      setTimer(check, isLoading() || rest <= 0 ? 5 : Math.max(rest, 1));
    };
    check();
  });

  /** Perform an interaction and settle; resolve to true if it changed the page. */
  const act = async (action, quiet, deadline) => {
    const before = changedAt;
    action();
    await frames();
    if (changedAt === before && !isBusy()) return false;
    await settle(quiet, Math.min(deadline, now() + ACTION_MS));
    return changedAt !== before;
  };

  const MORE = new RegExp(
    '^\\W*((load|show|see|view|read) (\\w+ )?more|more|(mehr|weitere)( \\w+)? (laden|anzeigen|lesen)|weiterlesen|mehr'
    + '|(voir|afficher|charger|lire)( \\w+)? (plus|suite)|(ver|mostrar|cargar|leer|carregar|ler) (más|mas|mais)|mostra altro'
    + '|carica altro|leggi (di più|tutto)|meer (laden|tonen|lezen)|toon meer|(visa|läs|ladda|vis|les|læs|last inn|indlæs)'
    + ' (fler|mer|mere|flere)|daha fazla.*|devamını.*|xem thêm|tải thêm|もっと.*|さらに.*|続きを.*|더 ?보기|더 ?읽기'
    + '|(加载|查看|顯示|显示|載入|閱讀|阅读|看)?更多.*)\\W*$', 'iu');
  const MORE_NAME = /(load|show|read|view|see)[-_]?more|more[-_]?(btn|button|link)/i;
  const BOX = ['cookie', 'consent', 'gdpr', 'onetrust', 'cmp', 'cc-window', 'privacy-wall']
    .map(name => `[id*="${name}" i], [class*="${name}" i]`).join(', ');
  const ACCEPT = new RegExp(
    'accept|agree|allow|consent-ok|got it|^ok$|akzept|zustimm|einverstanden|accett|acept|aceit|akkoord|godkänn|godkend|godta'
    + '|tillåt|tillad|kabul|đồng ý|chấp nhận|同意|承諾|許可|接受|동의|수락|허용', 'iu');
  const REFUSE = /reject|refuse|decline|deny|settings|manage|preferences|ablehn|rifiut|rechaz|refus|recus|weiger|avvis|拒/iu;
  const CLICKABLE = 'button, [role="button"], input[type="button"], a:not([href]), a[href^="#"], a[href^="javascript:"]';
  const TABS = '[role="tab"][aria-selected="false"], [role="tab"]:not([aria-selected])';
  const FOLDED = '[aria-expanded="false"]:not([aria-haspopup]):not([role="combobox"])';

  const label = element => (element.innerText || element.value || element.ariaLabel || '').trim();
  const names = element => `${element.id} ${element.getAttribute('class') || ''}`;
  const isMenu = element => element.closest('nav, header, footer, form, [role="navigation"], [role="menu"]') !== null;
  const isLink = element => element.matches('a[href]:not([href^="#"]):not([href^="javascript:"])');

  const consentButton = done => [...document.querySelectorAll(BOX)].flatMap(box => [...box.querySelectorAll(CLICKABLE)])
    .find(each => !done.has(each) && hearsClick(each) && ACCEPT.test(`${names(each)} ${label(each)}`)
      && !REFUSE.test(`${names(each)} ${label(each)}`));
  const moreButton = done => [...document.querySelectorAll(CLICKABLE)].find(
    each => !done.has(each) && hearsClick(each) && !isMenu(each) && (MORE_NAME.test(names(each)) || (label(each).length < 40 && MORE.test(label(each)))));
  const foldedElement = done => [...document.querySelectorAll(`${TABS}, ${FOLDED}`)].find(
    each => !done.has(each) && hearsClick(each) && !isMenu(each) && !isLink(each));

  /** Add the panels that tabs replaced to the end of the page, so that the DOM holds the text of each tab. */
  const keepPanels = panels => {
    const text = document.body.textContent;
    for (const panel of panels) {
      const content = panel.textContent.trim();
      if (content && !text.includes(content)) document.body.append(panel);
    }
  };

  const interact = async options => {
    const deadline = now() + options.interaction_ms, done = new Set(), panels = [];
    let clicks = 0, scrolls = 0;
    const mayClick = () => clicks < options.max_clicks && now() < deadline;
    const click = element => { clicks++; return act(() => element.click(), options.quiet_ms, deadline); };

    let button = consentButton(done);
    if (button && mayClick()) { done.add(button); await click(button); }

    const page = document.scrollingElement || document.documentElement;
    let height = -1;
    while (hearsScroll() && scrolls < options.max_scrolls && now() < deadline && page.scrollHeight > Math.max(height, innerHeight)) {
      height = page.scrollHeight;
      scrolls++;
      if (!await act(() => window.scrollTo(0, page.scrollHeight), options.quiet_ms, deadline)) break;
    }
    for (let folded; mayClick() && (folded = foldedElement(done));) {
      done.add(folded);
      if (folded.matches('[role="tab"]')) {
        panels.push(...[...document.querySelectorAll('[role="tabpanel"]')].map(panel => panel.cloneNode(true)));
      }
      await click(folded);
    }
    while (mayClick() && (button = moreButton(done))) {
      if (!await click(button)) done.add(button);
    }
    if (panels.length) keepPanels(panels);
    if (scrolls) window.scrollTo(0, 0);
    return { clicks, scrolls, exhausted: now() >= deadline || (clicks >= options.max_clicks && !!moreButton(done)) };
  };

  /** Copy shadow trees into the light DOM, because HTML does not hold them. */
  const flatten = root => {
    for (const host of root.querySelectorAll('*')) {
      if (!host.shadowRoot || host.querySelector(':scope > [data-shadow-root]')) continue;
      flatten(host.shadowRoot);
      const copy = document.createElement('div');
      copy.setAttribute('data-shadow-root', '');
      for (const child of host.shadowRoot.childNodes) if (child.nodeName !== 'STYLE') copy.append(child.cloneNode(true));
      host.append(copy);
    }
  };

  /** The DOM as HTML that declares UTF-8, because the bytes are written in it. */
  const serialize = () => {
    flatten(document);
    for (const meta of document.querySelectorAll('meta[charset]')) meta.setAttribute('charset', 'utf-8');
    for (const meta of document.querySelectorAll('meta[http-equiv="content-type" i]')) {
      meta.setAttribute('content', 'text/html; charset=utf-8');
    }
    return '<!DOCTYPE html>\n' + document.documentElement.outerHTML;
  };

  /** End timers and animations, so that the tab needs no time until its next page. */
  const stop = () => {
    window.requestAnimationFrame = () => 0;
    const last = setTimer(() => 0);
    for (let id = last; id > Math.max(0, last - 10000); id--) clearTimer(id);
  };

  const run = async options => {
    const settled = await settle(options.quiet_ms, now() + options.settle_ms);
    const used = await interact(options);
    const dom = serialize();
    const tooLarge = dom.length > options.max_dom_bytes;
    stop();
    return { settled, ...used, too_large: tooLarge, dom: tooLarge ? '' : dom };
  };
  Object.defineProperty(window, '__openafm', { value: Object.freeze({ run }) });
})();
