"""One HTML file with curves, groups and episodes that opens without a network; its only script is the one below."""

import base64
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from verl_agent.errors import counted
from verl_agent.viewer.charts import RunData, describe_panel, panels
from verl_agent.viewer.episode_html import STYLE, episode_html, html
from verl_agent.viewer.images import MAX_EMBEDDED, ImageBudget
from verl_agent.viewer.listings import learning_signal
from verl_agent.viewer.parts import EpisodePart
from verl_agent.viewer.queries import Row
from verl_agent.viewer.svg import line_chart

_PAGE_STYLE = """
body {margin: 16px auto; padding: 0 16px; max-width: 1100px}
table {border-collapse: collapse; width: 100%; font-size: 13px; display: block; overflow-x: auto}
td, th {text-align: left; padding: 2px 10px 2px 0; border-bottom: 1px solid var(--line); max-width: 320px;
  overflow: hidden; text-overflow: ellipsis; white-space: nowrap}
tbody tr {cursor: pointer}
tbody tr:hover, tbody tr:focus {background: var(--accent)}
svg text {font: 10px sans-serif; fill: currentColor}
svg .title {font: bold 12px sans-serif}
.curves {display: flex; flex-wrap: wrap; gap: 12px}
input {padding: 4px 8px; width: 24em; max-width: 100%; box-sizing: border-box}
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
COLUMNS = ("step", "purpose", "env", "category", "task", "group", "sample", "reward", "success", "stop")
"""Columns of the table of episodes, besides the number of turns."""


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
        f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
    )
    runs = "".join(_run(part) for part in parts)
    rows, templates = list[str](), list[str]()
    size, too_many = len(runs), 0
    for place, part in enumerate(parts):
        for number, episode in enumerate(part.episodes):
            name = f"e{place}-{number}"
            row = _row(name, part.data.name, episode)
            template = (
                f'<template id="{name}">{episode_html(episode, part.image)}</template>' if size < MAX_TEXT else ""
            )
            if rows and (not template or size + len(row) + len(template) > MAX_TEXT):
                too_many += 1
                continue
            rows.append(row)
            templates.append(template)
            size += len(row) + len(template)
    heads = "".join(f"<th>{name}</th>" for name in ("run", *COLUMNS, "turns"))
    filtered = f"<p>Filter: {html(chosen)}</p>" if chosen else ""
    left_out = (
        f"<p>{too_many} more episodes are left out: a page holds at most {MAX_TEXT / 1e6:g} MB. "
        "Choose fewer with --where or --limit.</p>"
        if too_many
        else ""
    )
    left_out += (
        f"<p>{images.left_out} images are left out: a page holds at most {MAX_EMBEDDED // 1_000_000} MB of them. "
        "Choose fewer episodes with --where or --limit.</p>"
        if images.left_out
        else ""
    )
    page = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html(titles)}</title>
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<style>{STYLE}{_PAGE_STYLE}</style></head>
<body class="va"><a href="#" id="back" hidden>all episodes</a><div id="shown"></div>
<div id="list">{runs}<h2>Episodes</h2>{filtered}{left_out}
<p><input id="search" placeholder="words of a row, such as a task or a group" aria-label="search">
<span id="count"></span>. Keys: Enter opens a row, n and p go to the next and previous episode, Escape goes back.</p>
<table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>
{"".join(templates)}
<script>{_SCRIPT}</script></body></html>
"""
    return page, len(rows)


def _run(part: RunPart) -> str:
    window = part.data.usual_window
    charts = [
        f"<div>{line_chart(panel, window)}<p class='small muted'>{html(describe_panel(panel, window))}</p></div>"
        for panel in panels(part.data)
    ]
    missing = f" The first {len(part.episodes)} of {part.total} are shown." if part.total > len(part.episodes) else ""
    return (
        f"<h2>{html(part.data.name)}</h2><p>{counted(part.total, 'episode')}.{missing}</p>"
        f'<div class="curves">{"".join(charts)}</div>{_groups(part)}'
    )


def _groups(part: RunPart) -> str:
    if not part.groups:
        return ""
    rows = []
    for group in part.groups:
        equal = "all returns are equal" if group["uniform"] else f"spread {group['spread']:.3g}"
        signal = ": ".join(filter(None, [learning_signal(group), equal]))
        facts = [group[name] for name in ("step", "purpose", "group", "task", "episodes")]
        cells = (*facts, f"{group['reward']:.3g}", signal)
        rows.append("<tr>" + "".join(f"<td>{html(cell)}</td>" for cell in cells) + "</tr>")
    heads = "".join(
        f"<th>{name}</th>" for name in ("step", "purpose", "group", "task", "samples", "mean return", "learning signal")
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    missing = f" The first {len(rows)} are shown." if len(rows) < part.total_groups else ""
    return f"<details><summary>{counted(part.total_groups, 'group')}.{missing}</summary>{table}</details>"


def _row(name: str, run: str, episode: EpisodePart) -> str:
    fields = dict(episode.record)
    values = [run, *(fields[column] for column in COLUMNS), episode.total]
    text = json.dumps(values, ensure_ascii=False).lower()
    cells = "".join(f"<td>{html(value)}</td>" for value in values)
    return f'<tr tabindex="0" data-episode="{name}" data-text="{html(text)}">{cells}</tr>'
