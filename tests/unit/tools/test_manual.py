"""The manual pages: one for each command, with everything that its help says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from shutil import which

import click
import pytest
from click.testing import CliRunner

from broker.release import version
from tests.unit.project.test_packaging import COMMANDS
from tools.manual.__main__ import installed, manual, page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("share") / "man" / "man1"
    manual.main([str(directory)], standalone_mode=False)
    return directory


def test_each_command_has_a_page(pages: Path) -> None:
    assert {one.name for one in pages.iterdir()} >= {f"{name}.1" for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_page_has_every_option_and_verb(pages: Path, name: str) -> None:
    text = (pages / f"{name}.1").read_text()
    command = installed()[name]
    said = text.replace("\\-", "-").replace("\\e", "\\")
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert max(option.opts, key=len) in said
    for verb in command.commands if isinstance(command, click.Group) else ():
        assert f".SS {verb}\n" in said
    assert f".SH NAME\n{name} \\- " in text.replace(name.replace("-", "\\-"), name)
    assert text.count(".nf\n") == text.count(".fi\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_prints_its_release(name: str) -> None:
    said = CliRunner().invoke(installed()[name], ["--version"], prog_name=name)
    assert (said.exit_code, said.output) == (0, f"{name} {version()}\n")


def test_text_that_looks_like_a_troff_command_is_escaped() -> None:
    command = click.Command(
        "c", help="Do it.\n\n.TH is \\fB text\n\n'quoted'\n\n\b\n  as-is\n  'twice'"
    )
    text = page("c", command)
    assert "\n\\&.TH is \\efB text\n" in text
    assert "\n\\&'quoted'\n" in text
    assert "\n.nf\n  as\\-is\n  'twice'\n.fi\n" in text


@pytest.mark.skipif(which("groff") is None, reason="no groff on this machine")
def test_troff_reports_no_errors(pages: Path) -> None:
    for one in pages.iterdir():
        ended = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", str(one)], capture_output=True, text=True, check=True
        )
        assert ended.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_narrow_terminal_except_for_examples(name: str) -> None:
    """Prose is wrapped; an example stays on its line, and its line ends stay where they are."""
    shown = click.Context(installed()[name], info_name=name, terminal_width=50).get_help()
    assert "\b" not in shown
    codes = shown.partition("\n  Exit codes: ")[2].partition("\n\n")[0]
    assert [line for line in codes.splitlines() if len(line) > 50] == []
