// Where no other page is around ours: the colours of the JupyterLab that shows it in a tab.
// It runs before anything is painted. Without a JupyterLab the browser's own choice stays.

const NAMES = [
  'border-color1',
  'border-color2',
  'brand-color1',
  'content-link-color',
  'error-color1',
  'info-color1',
  'layout-color1',
  'layout-color2',
  'layout-color3',
  'success-color1',
  'ui-font-color1',
  'ui-font-family',
  'warn-color1'
].map(name => `--jp-${name}`);

/** JupyterLab's document, if one of the same origin shows us. */
function lab() {
  try {
    const { document } = window.parent;
    return 'jpThemeLight' in document.body.dataset ? document : null;
  } catch {
    return null; // a page of another origin
  }
}

function takeColours(from) {
  const { style, dataset } = document.documentElement;
  const colours = getComputedStyle(from.documentElement);
  const theme = from.body.dataset.jpThemeLight === 'false' ? 'dark' : 'light';
  dataset.bsTheme = theme;
  style.colorScheme = theme;
  for (const name of NAMES) {
    style.setProperty(name, colours.getPropertyValue(name));
  }
}

const around = window.parent === window ? null : lab();
if (around) {
  takeColours(around);
  // A theme's style is there before JupyterLab says its name.
  const watch = new MutationObserver(() => takeColours(around));
  watch.observe(around.body, {
    attributeFilter: ['data-jp-theme-light', 'data-jp-theme-name']
  });
  window.addEventListener('pagehide', () => watch.disconnect());
}
