"""One HTML file with curves, groups and episodes that opens without a network; its only script is the one below."""

import hashlib
import json
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from verl_agent.errors import counted
from verl_agent.trace.curves import panel_png
from verl_agent.viewer.episode_html import STYLE, episode_html, html
from verl_agent.viewer.images import MAX_EMBEDDED, ImageBudget
from verl_agent.viewer.listings import learning_signal
from verl_agent.viewer.parts import EpisodePart
from verl_agent.viewer.queries import Row
from verl_agent.viewer.run_data import RunData, describe_panel, panels
from verl_agent.viewer.table_html import table_html

_PAGE_STYLE = """
body {margin: 16px auto; padding: 0 16px; max-width: 1100px}
#list {overflow-x: auto}
tr[data-episode] {cursor: pointer}
tr[data-episode]:hover, tr[data-episode]:focus {background: var(--accent)}
.curves {display: flex; flex-wrap: wrap; gap: 12px}
.curves > div {width: 460px; max-width: 100%}
.curves img {width: 100%}
input {padding: 4px 8px; width: 24em; max-width: 100%; box-sizing: border-box}
@media (prefers-color-scheme: dark) {.curves img {filter: invert(0.9) hue-rotate(180deg)}}
"""
_SCRIPT = """
'use strict';
const rows = [...document.querySelectorAll('tr[data-episode]')];
const search = document.getElementById('search');
const list = document.getElementById('list');
const shown = document.getElementById('shown');
function filter() {
  const words = search.value.toLowerCase().split(' ').filter(Boolean);
  let count = 0;
  for (const row of rows) {
    row.hidden = !words.every(word => row.dataset.text.includes(word));
    count += !row.hidden;
  }
  document.getElementById('count').textContent = `${count} of ${rows.length} episodes`;
}
function show() {
  const template = document.getElementById(location.hash.slice(1));
  list.hidden = Boolean(template);
  shown.replaceChildren(...(template ? [template.content.cloneNode(true)] : []));
  document.getElementById('back').hidden = !template;
  scrollTo(0, 0);
}
function move(by) {
  const open = rows.filter(row => !row.hidden);
  const place = open.findIndex(row => '#' + row.dataset.episode === location.hash);
  const next = open[place < 0 ? 0 : place + by];
  if (next) location.hash = next.dataset.episode;
}
for (const row of rows) {
  row.onclick = () => { location.hash = row.dataset.episode; };
  row.onkeydown = event => { if (event.key === 'Enter') row.onclick(); };
}
document.onkeydown = event => {
  if (event.target === search) return;
  if (event.key === 'n') move(1);
  if (event.key === 'p') move(-1);
  if (event.key === 'Escape') location.hash = '';
};
search.oninput = filter;
onhashchange = show;
filter();
show();
"""
MAX_TEXT = 4_500_000
"""Most characters of the episodes of a page, embedded images included; the first episode may have more."""
COLUMNS = ("run", "step", "purpose", "env", "category", "task", "group", "sample", "reward", "success", "stop", "turns")
"""Columns of the table of episodes."""
_GROUP_COLUMNS = ("step", "purpose", "group", "task", "samples", "mean return", "learning signal")


@dataclass(frozen=True, slots=True)
class RunPart:
    """Part of the page on one run.

    Attributes:
        data: numbers of the run by step; all of it, not of the selection alone.
        episodes: chosen episodes, the first turns of each.
        total: number of episodes that the filter selects.
        groups: groups of the chosen episodes; see `verl_agent.viewer.listings.list_groups`.
        total_groups: number of groups that the filter selects.
        image: see `episode_html`.
    """

    data: RunData
    episodes: Sequence[EpisodePart]
    total: int
    groups: Sequence[Row] = ()
    total_groups: int = 0
    image: Callable[[str], str | None] = lambda path: None


def static_page(parts: Sequence[RunPart], chosen: str, images: ImageBudget) -> tuple[str, int]:
    """Return the page and the number of its episodes.

    Args:
        chosen: description of the filter; empty for all episodes.
        images: limit of the images of all runs.
    """
    titles = ", ".join(part.data.name for part in parts)
    policy = (
        "default-src 'none'; style-src 'unsafe-inline'; img-src data:; "
        f"script-src 'sha256-{b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
    )
    runs = "".join(_run(part) for part in parts)
    rows, templates = list[Row](), list[str]()
    size, too_many = len(runs), 0
    for place, part in enumerate(parts):
        for number, episode in enumerate(part.episodes):
            row = {name: value for name, value in episode.record.items() if name in COLUMNS}
            row |= {"run": part.data.name, "turns": episode.total, "id": f"e{place}-{number}"}
            template = episode_html(episode, part.image) if size < MAX_TEXT else ""
            length = len(template) + len(table_html(COLUMNS, [row], attributes=_attributes))
            if rows and (not template or size + length > MAX_TEXT):
                too_many += 1
                continue
            rows.append(row)
            templates.append(f'<template id="{row["id"]}">{template}</template>')
            size += length
    table = table_html(COLUMNS, rows, attributes=_attributes)
    filtered = f"<p>Filter: {html(chosen)}</p>" if chosen else ""
    left_out = _left_out(too_many, "episodes", MAX_TEXT) + _left_out(images.left_out, "images", MAX_EMBEDDED)
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html(titles)}</title>
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<style>{STYLE}{_PAGE_STYLE}</style></head>
<body class="va"><a href="#" id="back" hidden>all episodes</a><div id="shown"></div>
<div id="list">{runs}<h2>Episodes</h2>{filtered}{left_out}
<p><input id="search" placeholder="words of a row, such as a task or a group" aria-label="search">
<span id="count"></span>. Keys: Enter opens a row, n and p go to the next and previous episode, Escape goes back.</p>
{table}</div>
{"".join(templates)}
<script>{_SCRIPT}</script></body></html>
"""
    return page, len(rows)


def _left_out(count: int, noun: str, limit: int) -> str:
    """Return a sentence on what is not on the page; empty for nothing."""
    if not count:
        return ""
    more = "more " if noun == "episodes" else ""
    return (
        f"<p>{count} {more}{noun} are left out: a page holds at most {limit / 1e6:g} MB of them. "
        "Choose fewer episodes with --where or --limit.</p>"
    )


def _run(part: RunPart) -> str:
    data = part.data
    window, steps = data.usual_window, data.positions("step")
    charts = [
        f'<div><img alt="{html(panel.kind.title)}" src="data:image/png;base64,'
        f'{b64encode(panel_png(panel, steps, window)).decode()}">'
        f"<p class='small muted'>{html(describe_panel(panel, window))}</p></div>"
        for panel in panels(data)
    ]
    missing = f" The first {len(part.episodes)} of {part.total} are shown." if part.total > len(part.episodes) else ""
    return (
        f"<h2>{html(data.name)}</h2><p>{counted(part.total, 'episode')}.{missing}</p>"
        f'<div class="curves">{"".join(charts)}</div>{_groups(part)}'
    )


def _groups(part: RunPart) -> str:
    if not part.groups:
        return ""
    missing = f" The first {len(part.groups)} are shown." if len(part.groups) < part.total_groups else ""
    table = table_html(_GROUP_COLUMNS, map(_group_row, part.groups))
    return f"<details><summary>{counted(part.total_groups, 'group')}.{missing}</summary>{table}</details>"


def _group_row(group: Row) -> Row:
    equal = "all returns are equal" if group["uniform"] else f"spread {group['spread']:.3g}"
    signal = ": ".join(filter(None, [learning_signal(group), equal]))
    return group | {"samples": group["episodes"], "mean return": f"{group['reward']:.3g}", "learning signal": signal}


def _attributes(row: Mapping[str, object]) -> str:
    """Return the attributes of the row of an episode: what opens it and the text that the search reads."""
    text = json.dumps([value for name, value in row.items() if name != "id"], ensure_ascii=False).lower()
    return f' tabindex="0" data-episode="{row["id"]}" data-text="{html(text)}"'
