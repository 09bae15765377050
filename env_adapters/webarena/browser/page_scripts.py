"""Scripts that the adapter runs in a page."""

QUIET_MS = 40
"""Milliseconds without a change of the document after which it counts as settled."""
MOVING_MS = 400
"""Milliseconds after which a document that keeps changing counts as settled."""
WAIT_UNTIL_STABLE = f"""new Promise(done => {{
  const startedAt = performance.now();
  const over = () => {{ clearTimeout(timer); watch.disconnect(); done(document.readyState); }};
  let timer = setTimeout(over, {QUIET_MS});
  const watch = new MutationObserver(() => {{
    clearTimeout(timer);
    timer = setTimeout(over, Math.min({QUIET_MS}, Math.max(0, {MOVING_MS} - (performance.now() - startedAt))));
  }});
  watch.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
}})"""
SCROLL = """sign => {
  const page = document.scrollingElement || document.body;
  page.scrollTop += sign * window.innerHeight;
}"""
SELECT_OPTION = """function(label) {
  const normalize = text => text.trim().replace(/\\s+/g, ' ').toLowerCase();
  let list = this, option = null;
  if (this.tagName === 'OPTION' && label === null) { list = this.closest('select'); option = this; }
  if (!list || list.tagName !== 'SELECT') return 'none';
  if (list.disabled) return 'disabled';
  if (label !== null) {
    const options = [...list.options], prefix = normalize(label);
    const labelOf = option => normalize(option.label);
    option = options.find(one => labelOf(one) === prefix) || options.find(one => labelOf(one).startsWith(prefix));
    if (!option) return 'missing';
  }
  if (option.disabled) return 'disabled';
  list.focus();
  option.selected = !list.multiple || label !== null || !option.selected;
  list.dispatchEvent(new Event('input', {bubbles: true}));
  list.dispatchEvent(new Event('change', {bubbles: true}));
  return 'chosen';
}"""
"""Selects an option of a list, because the system draws its menu and a click cannot reach it. Returns the outcome."""
MOVE_CURSOR_TO_END = """(() => {
  const field = document.activeElement, chosen = getSelection();
  if (field.matches('input, textarea')) {
    const end = field.value.length;
    if (field.selectionStart === null) return 'by key';
    if (field.selectionStart === field.selectionEnd) field.setSelectionRange(end, end);
  } else if (field.isContentEditable && chosen.isCollapsed) {
    chosen.selectAllChildren(field);
    chosen.collapseToEnd();
  }
})()"""
"""Some fields (for example, number fields) do not expose their cursor; the key `End` moves it there."""
