"""Tickets of the code host: database columns, and pages in which every field has a label."""

from collections.abc import Iterable, Mapping

from env_adapters.web_sites.world.code import PRIORITIES, STATUSES, TYPES

TABLE = """\
CREATE TABLE ticket(
  tkt_id INTEGER PRIMARY KEY, tkt_uuid TEXT UNIQUE, tkt_mtime DATE, tkt_ctime DATE,
  title TEXT, type TEXT, status TEXT, priority TEXT, assignee TEXT, reporter TEXT, comment TEXT
);
CREATE TABLE ticketchng(
  tkt_id INTEGER REFERENCES ticket, tkt_rid INTEGER REFERENCES blob, tkt_mtime DATE, tkt_user TEXT,
  login TEXT, username TEXT, mimetype TEXT, icomment TEXT
);
CREATE INDEX ticketchng_idx1 ON ticketchng(tkt_id, tkt_mtime);
"""

COMMON = "".join(
    f"set {name}_choices {{{' '.join('{' + word + '}' for word in words)}}}\n"
    for name, words in (("type", TYPES), ("status", STATUSES), ("priority", PRIORITIES))
)


def radios(name: str, words: Iterable[str]) -> str:
    """Return one radio button for each value; the current value is selected."""
    label = name.capitalize()
    lines = [f"<fieldset><legend>{label}</legend>\n"]
    for word in words:
        lines.append(
            f'<label><input type="radio" name="{name}" value="{word}"'
            f'<th1>if {{${name} eq "{word}"}} {{html " checked"}}</th1> /> {word}</label>\n'
        )
    return "".join([*lines, "</fieldset>\n"])


def text_field(name: str, label: str) -> str:
    """Return a field for one line of text."""
    return f'<p><label>{label}: <input type="text" name="{name}" size="60" value="$<{name}>" /></label></p>\n'


def text_area(name: str, label: str) -> str:
    """Return an empty field for several lines of text."""
    return f'<p><label>{label}:<br /><textarea name="{name}" cols="80" rows="6"></textarea></label></p>\n'


def set_defaults(values: Mapping[str, str]) -> str:
    """Return a script that sets values missing in the request."""
    return "".join(
        f"  if {{![info exists {name}] || [string length ${name}]==0}} {{set {name} {{{value}}}}}\n"
        for name, value in values.items()
    )


NEW = (
    "<th1>\n"
    + set_defaults({"type": TYPES[0], "priority": "Medium"})
    + """  if {[info exists submit]} {
    set status Open
    set reporter $login
    submit_ticket
  }
</th1>
<h1>New Ticket</h1>
"""
    + text_field("title", "Title")
    + radios("type", TYPES)
    + radios("priority", PRIORITIES)
    + text_field("assignee", "Assignee")
    + text_area("comment", "Description")
    + '<p><input type="submit" name="submit" value="Create ticket" /></p>\n'
)

EDIT = (
    """<th1>
  if {[info exists submit]} {
    set mimetype text/plain
    set username $login
    submit_ticket
  }
</th1>
<h1>Edit Ticket</h1>
"""
    + text_field("title", "Title")
    + radios("status", STATUSES)
    + radios("type", TYPES)
    + radios("priority", PRIORITIES)
    + text_field("assignee", "Assignee")
    + text_area("icomment", "Comment")
    + '<p><input type="submit" name="submit" value="Save changes" /></p>\n'
)

VIEW = """<h1>$<title></h1>
<table class="ticket">
<tr><th>Ticket</th><td><th1>html [string range $tkt_uuid 0 9]</th1></td></tr>
<tr><th>Status</th><td id="tkt-status">$<status></td></tr>
<tr><th>Type</th><td id="tkt-type">$<type></td></tr>
<tr><th>Priority</th><td id="tkt-priority">$<priority></td></tr>
<tr><th>Assignee</th><td id="tkt-assignee">$<assignee></td></tr>
<tr><th>Reporter</th><td id="tkt-reporter">$<reporter></td></tr>
</table>
<h2>Description</h2>
<p id="tkt-description">$<comment></p>
<h2>Comments</h2>
<ol id="tkt-comments">
<th1>
query {SELECT datetime(tkt_mtime) AS xdate, login AS xlogin, icomment AS xcomment
         FROM ticketchng WHERE tkt_id=$tkt_id AND length(icomment)>0 ORDER BY tkt_mtime} {
  html "<li>[htmlize $xlogin] wrote on $xdate: [htmlize $xcomment]</li>\\n"
}
</th1>
</ol>
"""

REPORTS = {
    "All tickets": "1",
    "Open tickets": "status<>'Closed'",
    "Closed tickets": "status='Closed'",
    "Unassigned tickets": "coalesce(assignee,'')=''",
}
"""SQL condition of each list of tickets."""


def ticket_report(condition: str) -> str:
    """Return the query of a list of tickets, the newest first."""
    return (
        "SELECT substr(tkt_uuid,1,10) AS '#', title AS 'Title', type AS 'Type', status AS 'Status', "
        "priority AS 'Priority', coalesce(assignee,'') AS 'Assignee', coalesce(reporter,'') AS 'Reporter', "
        f"date(tkt_ctime) AS 'Created' FROM ticket WHERE {condition} ORDER BY tkt_ctime DESC"
    )


FOOTER = """<div class="footer">$<project_name></div>\n"""
"""Replaces Fossil's own footer, whose page time differs at each request."""

MENU = """\
Home      /home       *  {}
Timeline  /timeline   *  {}
Files     /dir?ci=tip *  {}
Tags      /taglist    *  {}
Tickets   /reportlist *  {}
Wiki      /wcontent   *  {}
"""
