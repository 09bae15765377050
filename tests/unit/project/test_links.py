"""Tests that relative links in Markdown files lead to existing files and headings."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests import ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
MADE = {ROOT / "docs" / "reference" / f"{name}.md" for name in ("api", "commands", "metrics", "recipes", "settings")}
MADE |= {
    ROOT / "docs" / "results" / "gallery" / f"{name}.html"
    for name in ("guess_number", "textcraft", "textcraft_quickstart")
}
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def markdown_files() -> list[Path]:
    """Return the Markdown files of the repository."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in map(ROOT.joinpath, names) if path.is_file()]


def without_code(text: str) -> str:
    """Remove code, whose comments and brackets look like headings and links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))


def anchors(text: str) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub derives them."""
    titles = HEADING.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken_links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page that lead to no file or to no heading.

    Pages that docs/build.py makes are left to Zensical, which checks all links of the site.
    """
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if file.resolve() in MADE:
            continue
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            yield target


def test_links_lead_to_existing_files_and_headings():
    broken = [f"{page.relative_to(ROOT)}: {target}" for page in markdown_files() for target in broken_links(page)]
    assert not broken, "\n".join(broken)


def test_pages_of_the_site_link_within_it():
    site = ROOT / "docs"
    outside = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in markdown_files()
        for target in LINK.findall(without_code(page.read_text(encoding="utf-8")))
        if site in page.parents and not re.match(r"[a-z]+:|#", target)
        if site not in (page.parent / target).resolve().parents
    ]
    assert not outside, "\n".join(outside)


def test_broken_links_are_detected(tmp_path):
    (tmp_path / "other.md").write_text("# What `x` is, and why\n```bash\n# no heading\n```\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[a](other.md) [b](other.md#what-x-is-and-why) [c](#here) [d](https://example.org) `[e](none)`\n"
        "[f](missing.md) [g](other.md#no-heading) [h](#there)\n"
    )
    assert list(broken_links(page)) == ["missing.md", "other.md#no-heading", "#there"]
