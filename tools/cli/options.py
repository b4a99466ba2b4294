"""Command line basics of all commands: option files, sources of values, short errors.

A broker option may come from the command line, from the environment as `QPIDD_NAME`, or from an
option file; the first that gives it wins. An error names the place of a wrong value.
"""

from __future__ import annotations

import io
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import click

from broker.exit_codes import Exit
from broker.options.addresses import Address as Address
from broker.options.addresses import parse_address as parse_address
from broker.options.broker import BrokerOptions, broker_options
from broker.options.table import DEFAULTS
from broker.options.values import Option, OptionError, has_password
from tools.cli.failures import ToolError, meant, os_reason
from tools.cli.shared_options import together
from tools.cli.streams import FULL, complain, flush_output, replace_closed

ENVIRONMENT_PREFIX = "QPIDD_"


class Given(NamedTuple):
    """One value as given, and where it was given."""

    text: str
    place: str
    code: Exit


def environment_name(option: str) -> str:
    """`cluster-name` is set in the environment by `QPIDD_CLUSTER_NAME`."""
    return ENVIRONMENT_PREFIX + option.upper().replace("-", "_")


def read_option_file(path: Path) -> dict[str, Given]:
    """Read `name = value` lines (also `name=value`, `name="value"`; `#` starts a comment line).

    One bad line refuses the whole file: a typo must not start a broker with a default.
    """
    try:
        # Some editors begin a file with an invisible byte order mark.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as problem:
        reason = problem.strerror or "cannot be read"
        raise ToolError(f"option file {path}: {reason}", Exit.CONFIG) from None
    except UnicodeDecodeError:
        raise ToolError(f"option file {path}: this is not UTF-8 text", Exit.CONFIG) from None
    given: dict[str, Given] = {}
    for number, line in enumerate(lines, start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        place = f"{path}, line {number}"
        name, equals, value = stripped.partition("=")
        name = name.strip().removeprefix("--")
        if not equals:
            raise ToolError(f"{place}: '{stripped}' is not of the form name = value", Exit.CONFIG)
        if name not in DEFAULTS:
            raise ToolError(
                f"{place}: there is no option '{name}'{meant(name, DEFAULTS, '--')}", Exit.CONFIG
            )
        if name in given:
            raise ToolError(f"{place}: '{name}' is already set above", Exit.CONFIG)
        given[name] = Given(_unquoted(value.strip(), name, place), f"{place}: {name}", Exit.CONFIG)
    secret = any(has_password(name, value.text) for name, value in given.items())
    if secret and path.stat().st_mode & stat.S_IRWXO:
        raise ToolError(
            f"option file {path} holds a password and everybody can read or write it; "
            f"run: chmod o= {path}",
            Exit.CONFIG,
        )
    return given


def ignored(environment: Mapping[str, str]) -> str:
    """One sentence about variables that look like options but are not; empty: there are none."""
    known = {environment_name(option) for option in (*DEFAULTS, "config")}
    names = [name for name in environment if name.startswith(ENVIRONMENT_PREFIX)]
    found = sorted(set(names) - known)
    if not found:
        return ""
    option = found[0].removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", "-")
    are = "is no option" if len(found) == 1 else "are no options"
    return f"of the environment {', '.join(found)} {are} and ignored{meant(option, DEFAULTS, '--')}"


def _unquoted(value: str, name: str, place: str) -> str:
    """Remove one pair of quotes, as used in the original's manual."""
    quote = value[:1]
    if quote not in ("'", '"'):
        if " #" in value or "\t#" in value:
            why = (
                f"a comment stands on a line of its own; if the value of '{name}' has a #, quote it"
            )
            raise ToolError(f"{place}: {why}", Exit.CONFIG)
        return value
    if len(value) < 2 or value[-1] != quote:
        why = f"the value of '{name}' begins with a quote and does not end with it"
        raise ToolError(f"{place}: {why}", Exit.CONFIG)
    return value[1:-1]


def collect(
    typed: Mapping[str, str], environment: Mapping[str, str], config: Path | None
) -> dict[str, Given]:
    """Each option's value from the first place that gives it: command line, environment, file."""
    given = read_option_file(config) if config is not None else {}
    for option in DEFAULTS:
        variable = environment_name(option)
        if variable in environment:
            given[option] = Given(environment[variable], variable, Exit.USAGE)
        if option in typed:
            given[option] = Given(typed[option], f"--{option}", Exit.USAGE)
    return given


def resolve(given: Mapping[str, Given]) -> BrokerOptions:
    """Validate the collected values; an error names the place that a bad value came from."""
    try:
        return broker_options({option: value.text for option, value in given.items()})
    except OptionError as problem:
        source = given.get(problem.option, Given("", f"--{problem.option}", Exit.USAGE))
        raise ToolError(f"{source.place}: {problem.reason}", source.code) from None


def read_options(
    typed: Mapping[str, str], environment: Mapping[str, str], config: Path | None
) -> BrokerOptions:
    """Read all options of a broker, as they are now."""
    return resolve(collect(typed, environment, config))


Command = TypeVar("Command", bound=Callable[..., Any])


def with_options(table: Mapping[str, Option]) -> Callable[[Command], Command]:
    """Add the options of a table to a command."""

    def made(name: str, option: Option) -> Callable[[Any], Any]:
        word: dict[str, Any] = {"metavar": option.placeholder, "help": option.help}
        if option.placeholder.startswith("["):
            word |= {"is_flag": False, "flag_value": "yes"}
        return click.option(f"--{name}", **word)

    return together(*starmap(made, table.items()))


def _asked(name: str, problem: click.ClickException) -> str:
    """The command, including the verb if that was used wrongly: it has its own help."""
    context = problem.ctx if isinstance(problem, click.UsageError) else None
    return name if context is None else context.command_path


def _belongs_before(problem: click.ClickException) -> str:
    """The sentence about an option that a verb lacks and the command itself has; empty: none."""
    if not isinstance(problem, click.NoSuchOption) or problem.ctx is None:
        return ""
    name, whole = problem.option_name, problem.ctx.find_root()
    if not any(name in one.opts for one in whole.command.params):
        return ""
    verb = problem.ctx.command_path.removeprefix(f"{whole.info_name} ")
    return f"{name} stands before the verb: {whole.info_name} {name} ... {verb} ..."


def _written_otherwise(problem: click.ClickException) -> str:
    """The sentence about an option that is a choice of another (`--json`: `--format json`): click
    would name the nearest spelling, which is none of the sort; empty: it is no such choice."""
    if not isinstance(problem, click.NoSuchOption) or problem.ctx is None:
        return ""
    name = problem.option_name
    for one in problem.ctx.command.params:
        if isinstance(one.type, click.Choice) and name.removeprefix("--") in one.type.choices:
            return f"No such option '{name}': write {one.opts[0]} {name.removeprefix('--')}"
    return ""


def _check_text(arguments: Sequence[str]) -> None:
    """Bytes that are not text in this locale come as lone surrogates, which cannot be sent."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise ToolError(
                f"{argument!a} is no text in this locale's encoding "
                f"({sys.getfilesystemencoding()}); set LC_ALL=C.UTF-8",
                Exit.USAGE,
            ) from None


class Codes(NamedTuple):
    """The exit codes of a command that has its own, as Qpid's and corosync's commands have."""

    usage: int
    failure: int


def run_command(
    command: click.Command, arguments: Sequence[str] | None = None, codes: Codes | None = None
) -> NoReturn:
    """Run a click command so that every failure is one sentence on stderr and a stable code: with
    `codes`, none of `broker.exit_codes`."""
    name = command.name or "command"
    replace_closed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that this terminal cannot show appears as \xfc.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            code, problem = _ended(command, arguments, codes), None
        except OSError as failure:
            if failure.errno not in FULL:
                raise
            code, problem = Exit.CANNOT_CREATE, failure
        problem = flush_output() or problem
        if problem is not None:
            complain(f"{name}: output: {os_reason(problem)}")
            code = Exit.CANNOT_CREATE if codes is None else codes.failure
    except BrokenPipeError:
        # The reader of our output left (`drain | head`); stderr may be gone as well.
        sys.stderr.close()
        code = Exit.FAILURE if codes is None else codes.failure
    sys.exit(code)


def _ended(command: click.Command, arguments: Sequence[str] | None, codes: Codes | None) -> int:
    """Run the command, print any failure, and return the exit code."""
    name = command.name or "command"
    usage, failure = codes or (Exit.USAGE, None)
    output = sys.stdout
    try:
        _check_text(sys.argv[1:] if arguments is None else arguments)
        outcome = command.main(
            args=list(arguments) if arguments is not None else None,
            prog_name=name,
            standalone_mode=False,
        )
    except ToolError as problem:
        complain(f"{name}: {problem}")
        if problem.code == Exit.USAGE:
            return usage
        return problem.code if failure is None else failure
    except OSError as problem:
        # A path that cannot even be looked at: its name is too long, or its directory is closed.
        if problem.filename is None:
            raise
        complain(f"{name}: {problem.filename}: {os_reason(problem)}")
        return Exit.FAILURE if failure is None else failure
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as problem:
        sentence = problem.format_message().rstrip(".")
        if sentence.startswith("Usage: "):  # a command without its verb: the help says everything
            complain(sentence)
            return usage
        sentence = (
            _belongs_before(problem) or _written_otherwise(problem) or " ".join(sentence.split())
        )
        end = "" if sentence.endswith("?") else "."
        complain(f"{name}: {sentence}{end} Try '{_asked(name, problem)} --help'.")
        return usage
    except SystemExit as ended:
        if sys.stdout is not output:  # click puts another in its place when a reader has left
            raise BrokenPipeError from None
        return ended.code if isinstance(ended.code, int) else Exit.FAILURE
    except (click.Abort, KeyboardInterrupt):
        complain("")
        return 130
    return outcome if isinstance(outcome, int) else Exit.OK
