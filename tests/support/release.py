"""Checks of a release: version, changelog, contents of sdist and wheel, licences. `make release` runs it.

It builds into dist/ and uploads nothing. Needs a package index for the build.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from tests import ROOT

PICTURES = (".png", ".webp")
LICENCES = ("Apache", "MIT", "BSD", "GNU", "GPL", "public domain")
"""Words for licences in NOTICE."""
COPYLEFT = re.compile(r"\b(A?GPL|GNU (Affero )?General Public)", re.IGNORECASE)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


def tracked(*folders: str) -> set[str]:
    """Return the files in git below some folders."""
    listed = subprocess.check_output(["git", "ls-files", "-z", *folders], cwd=ROOT, text=True)
    return set(listed.split("\0")) - {""}


def check_version(version: str) -> Iterator[str]:
    """Yield what is wrong with the state of the repository."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## [{version}] - YYYY-MM-DD`. Add it, or set another version in setup.py."
    unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
    if unreleased and unreleased[1].strip():
        yield "CHANGELOG.md has entries below [Unreleased]. Move them below the heading of the version."
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT, text=True):
        yield "the working tree has changes that are in no commit. Commit them, or put them away."


def check_contents(wheel: Path, sdist: Path) -> Iterator[str]:
    """Yield the files that a wheel or an sdist lacks, and those that it should not have."""
    with zipfile.ZipFile(wheel) as file:
        found = {name for name in file.namelist() if ".dist-info/" not in name}
        licences = {Path(name).name for name in file.namelist() if "/licenses/" in name}
    wanted = tracked("verl_agent", "env_adapters")
    wanted |= {f"verl_agent/{path}" for path in tracked("recipes", "requirements") if not path.endswith(PICTURES)}
    for name in sorted(wanted - found):
        yield f"{wheel.name} lacks {name}. Name it in package_data of setup.py."
    for name in sorted(found - wanted):
        yield f"{wheel.name} has {name}, which is not in git. Remove build/ and the file."
    for name in sorted({"LICENSE", "NOTICE"} - licences):
        yield f"{wheel.name} lacks {name}."
    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    for name in sorted({"CHANGELOG.md", "Makefile", "NOTICE", "requirements/cpu.txt", "setup.py"} - packed):
        yield f"{sdist.name} lacks {name}. Name it in MANIFEST.in."


def licence(package: Distribution) -> str:
    """Return all that an installed package says about its licence."""
    metadata = package.metadata
    fields = [metadata.get("License", ""), metadata.get("License-Expression", "")]
    fields += [one for one in metadata.get_all("Classifier") or [] if one.startswith("License")]
    named = [one for one in package.files or [] if re.match(r"licen[cs]e|copying|notice", one.name, re.IGNORECASE)]
    texts = [Path(str(one.locate())).read_text(encoding="utf-8", errors="replace")[:2000] for one in named]
    return "\n".join([*fields, *texts])


def check_licences() -> Iterator[str]:
    """Yield what NOTICE says otherwise than the installed packages, and copyleft packages that it does not name."""
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    entries = {}
    for entry in re.split(r"^\* ", notice, flags=re.MULTILINE)[1:]:
        for name, version in re.findall(r"package ([\w-]+)(?: (\d[\d.]*\d))?", entry):
            entries[name] = (version, entry)
    for name, (version, entry) in entries.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            say(f"not installed here, so not compared: {name}")
            continue
        if version and package.version != version:
            yield f"NOTICE names {name} {version}, and {package.version} is installed. Correct NOTICE or the lock."
        stated = licence(package)
        if stated.strip() and not any(word in entry and word.lower() in stated.lower() for word in LICENCES):
            yield f"NOTICE does not name the licence that {name} {package.version} states: {stated[:100]!r}."
    for package in distributions():
        metadata = package.metadata
        short = f"{metadata.get('License-Expression', '')} {(metadata.get('License') or '')[:100]}"
        short += " ".join(one for one in metadata.get_all("Classifier") or [] if one.startswith("License"))
        if (
            COPYLEFT.search(short)
            and "LGPL" not in short
            and "Lesser" not in short
            and package.name.lower() not in entries
        ):
            yield f"{package.name} {package.version} is {short.strip()[:80]!r}, and NOTICE does not name it."


def main() -> int:
    """Build into dist/ and print what is wrong; return 1 if anything is."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "uv", "build", "--quiet", "--out-dir", "dist"], cwd=ROOT, check=True)
    (wheel,), (sdist,) = (ROOT / "dist").glob("*.whl"), (ROOT / "dist").glob("*.tar.gz")
    version = wheel.name.split("-")[1]
    problems = [*check_version(version), *check_contents(wheel, sdist), *check_licences()]
    for path in (wheel, sdist):
        say(f"dist/{path.name}: {path.stat().st_size / 1e6:.1f} MB")
    for problem in problems:
        say(f"- {problem}")
    say(f"{len(problems)} problems." if problems else f"Version {version} is ready. Nothing was uploaded.")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
