"""Everything that the project cites exists: guarantees, decisions, pages, files.

Each check collects every violation before it fails, so that one run shows them all.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from broker.findings.rules import NAMES
from tests import manual_pages
from tests.manual_pages import anchors
from tests.unit.project.test_tidy import PACKAGES, ROOT, name, sources

DOCS = ROOT / "docs"
DECISIONS = DOCS / "decisions"
DECISION_BY_NUMBER = re.compile(r"\bdecisions?[ \n]+\(?\d|DESIGN(\.md)?[ \n]+\d", re.IGNORECASE)
DECISION = re.compile(r"(?:decisions/|`)(\d{4}(?:-[\w-]*)?)(\.md)?")
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([\w-]*))?\)")
NAMED = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
MANUAL_LINES_MAX = 250
PLACE = re.compile(r"`((?:vsync|broker|store|tools|tests|docs|conf)/[\w/.-]+)")


def texts() -> Iterator[tuple[Path, str]]:
    """Every source and page of the project."""
    pages = [
        *ROOT.glob("*.md"),
        *DOCS.rglob("*.md"),
        *sorted(p for p in (ROOT / "conf").rglob("*") if p.is_file()),
    ]
    for path in [*sources(*PACKAGES), *pages, ROOT / "pyproject.toml", ROOT / "Makefile"]:
        if path != Path(__file__).resolve():
            yield path, path.read_text(encoding="utf-8")


def pages() -> Iterator[tuple[Path, str]]:
    yield from ((path, text) for path, text in texts() if path.suffix == ".md")


def guarantee_numbers() -> set[str]:
    """The numbers that docs/GUARANTEES.md defines, as in `- **G4 Safe delivery.**`."""
    text = (ROOT / "docs" / "GUARANTEES.md").read_text(encoding="utf-8")
    return set(re.findall(r"^- \*\*(G\d+) ", text, re.MULTILINE))


def cited_numbers(*folders: str) -> dict[str, str]:
    """Each G-number found in these folders, with one file that cites it."""
    cited: dict[str, str] = {}
    for path in sources(*folders):
        if path == Path(__file__).resolve():
            continue
        for number in re.findall(r"\bG[1-9]\d?\b", path.read_text(encoding="utf-8")):
            cited.setdefault(number, name(path))
    return cited


def test_each_finding_has_a_paragraph_for_the_engineer_on_call() -> None:
    """And the page explains no finding that does not exist. The link shown with a finding is this
    heading."""
    text = (DOCS / "ONCALL.md").read_text(encoding="utf-8").partition("\n## Each finding\n")[2]
    parts = re.split(r"^### (.+)\n", text.partition("\n## ")[0], flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(told) == list(NAMES)
    assert {finding: told[finding].split(None, 1)[0].rstrip(".").lower() for finding in told} == {
        finding: severity for finding, (severity, _) in NAMES.items()
    }


def test_every_cited_guarantee_exists() -> None:
    promised = guarantee_numbers()
    assert len(promised) >= 10
    unknown = {
        number: path for number, path in cited_numbers(*PACKAGES).items() if number not in promised
    }
    assert not unknown, f"cited but not in docs/GUARANTEES.md: {unknown}"


def test_every_guarantee_has_a_test_that_cites_it() -> None:
    untested = guarantee_numbers() - cited_numbers("tests").keys()
    assert not untested, f"promised, but no test cites {', '.join(sorted(untested))}"


def unknown_decisions(text: str) -> list[str]:
    """Citations of decisions by number, and of file names that do not exist."""
    found = [match[0] for match in DECISION_BY_NUMBER.finditer(text)]
    stems = {path.stem for path in DECISIONS.glob("0*.md")}
    return found + [m[1] for m in DECISION.finditer(text) if m[1] not in stems]


def test_every_cited_decision_exists_under_its_file_name() -> None:
    found = [
        f"{name(path)}: {cited}" for path, text in texts() for cited in unknown_decisions(text)
    ]
    assert not found, "\n".join(["cite docs/decisions/NNNN-name.md:", *found])


def test_the_check_of_decisions_finds_what_it_should() -> None:
    bad = "(decision 4), decision 4.11, Decision 0005, decisions/0012, `0005-other`, DESIGN 4"
    assert len(unknown_decisions(bad)) == 6
    good = "docs/decisions/0013-validate-then-mutate.md, `0013-validate-then-mutate`, a decision"
    assert unknown_decisions(good) == []


def test_the_index_of_decisions_names_them_all() -> None:
    index = (DECISIONS / "README.md").read_text(encoding="utf-8")
    missing = [p.name for p in sorted(DECISIONS.glob("0*.md")) if f"]({p.name})" not in index]
    assert not missing, f"not in docs/decisions/README.md: {', '.join(missing)}"


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = []
    for path, text in pages():
        for target, anchor in LINK.findall(text):
            if "://" in target:
                continue
            page = (path.parent / target).resolve() if target else path
            if not page.exists() or (anchor and anchor not in anchors(page)):
                broken.append(f"{name(path)}: {target}#{anchor}")
    assert not broken, "\n".join(["links to nowhere:", *broken])


def unknown_pages(text: str) -> list[str]:
    """Pages, anchors and chapters of docs that a text cites by path and that do not exist."""
    found = []
    for cited in re.findall(r"\bdocs/[\w/.-]+\.md(?:#[\w-]+)?", text):
        place, _, anchor = cited.partition("#")
        page = ROOT / place
        if not page.exists() or (anchor and anchor not in anchors(page)):
            found.append(cited)
    for place, chapter in re.findall(r'(docs/[\w/.-]+\.md),[\s#]+"([^"\n]+)"', text):
        page = ROOT / place
        if page.exists() and f"# {chapter}\n" not in page.read_text(encoding="utf-8"):
            found.append(f"{place}, {chapter}")
    return found


def test_every_page_that_a_source_names_exists() -> None:
    """Messages of the product, docstrings and samples tell readers where to look."""
    found = [
        f"{name(path)}: {cited}"
        for path, text in texts()
        if path.name != "CHANGELOG.md"
        for cited in unknown_pages(text)
        if "NNNN" not in cited
    ]
    assert not found, "\n".join(["no such page or chapter:", *found])


def test_the_check_of_pages_finds_what_it_should() -> None:
    bad = 'docs/NONE.md, docs/ONCALL.md#none, docs/operations/pairs.md, "None"'
    assert unknown_pages(bad) == [
        "docs/NONE.md", "docs/ONCALL.md#none", "docs/operations/pairs.md, None",
    ]  # fmt: skip
    good = 'docs/ONCALL.md, docs/operations/pairs.md#master-and-slave, docs/ONCALL.md, "First"'
    assert unknown_pages(good) == []


def test_the_manual_has_a_one_page_index_and_pages_of_readable_length() -> None:
    index = manual_pages.INDEX.read_text(encoding="utf-8")
    _, *pages = manual_pages.pages()
    assert len(pages) > 10
    unlisted = [page.name for page in pages if f"](operations/{page.name}" not in index]
    assert not unlisted, f"not in the index: {', '.join(unlisted)}"
    long = [page.name for page in manual_pages.pages()
            if page.read_text(encoding="utf-8").count("\n") > MANUAL_LINES_MAX]  # fmt: skip
    assert not long, f"over {MANUAL_LINES_MAX} lines: {', '.join(long)}"
    hasty = [page.name for page in pages
             if "    " not in page.read_text(encoding="utf-8").partition("\n## ")[0]]  # fmt: skip
    assert not hasty, f"do not begin with the main commands: {', '.join(hasty)}"


def test_every_name_that_a_page_gives_to_a_file_is_in_it() -> None:
    """For example `vsync/totem/phases.py: MOVES`."""
    found = []
    for path, text in pages():
        for place, cited in NAMED.findall(text):
            source = (ROOT / place).read_text(encoding="utf-8") if (ROOT / place).exists() else ""
            last = cited.rpartition(".")[2]
            if not re.search(
                rf"^ *(?:(?:async )?def|class) {last}\b|^{last}\b", source, re.MULTILINE
            ):
                found.append(f"{name(path)}: {place}: {cited}")
    assert not found, "\n".join(["not defined there:", *found])


def test_the_changelog_has_a_section_for_this_release() -> None:
    """The newest numbered section is that of the version in pyproject.toml, with its date."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (\d+\.\d+\.\d+) - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert releases[0] == project["version"]
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert [head.partition(" ")[0] for head in heads if head != "Unreleased"] == releases


def test_every_file_that_a_page_names_exists() -> None:
    """Except in the changelog, which names files of the past."""
    found = []
    for path, text in pages():
        if path.name == "CHANGELOG.md":
            continue
        for cited in PLACE.findall(text):
            place = cited.rstrip("/.")
            if not any((ROOT / f"{place}{end}").exists() for end in ("", ".py")):
                found.append(f"{name(path)}: {cited}")
    assert not found, "\n".join(["no such file:", *found])
