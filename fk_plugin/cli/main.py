"""`fk`: finds its commands in this package. Each module has HELP, configure(parser) and run(args) -> exit status."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import signal
import sys
from pathlib import Path

import fk_plugin
from fk_plugin.errors import FkError, UsageError

EXIT_PASS, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise UsageError(f"{message}; `{self.prog} --help` shows what is accepted.")


def _commands() -> list[str]:
    names = (info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return [name for name in names if name != "main" and not name.startswith("_")]


def build() -> argparse.ArgumentParser:
    """The parser with every command."""
    parser = _Parser(prog="fk", description=fk_plugin.__doc__)
    parser.add_argument("--version", action="version", version=fk_plugin.__version__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in _commands():
        module = importlib.import_module(f"fk_plugin.cli.{name}")
        sub = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.configure(sub)
        sub.set_defaults(run=module.run)
    return parser


def _terminate(*_: object) -> None:
    # As an exception, so that engines and candidates in child processes are stopped on the way out.
    raise SystemExit(128 + signal.SIGTERM)


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit status 0: done or passed; 1: a check failed; 2: the request cannot be carried out."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        args = build().parse_args(argv)
        return int(args.run(args))
    except UsageError as error:
        print(f"fk: {error}", file=sys.stderr)
        return EXIT_USAGE
    except FkError as error:
        print(f"fk: {error}", file=sys.stderr)
        return EXIT_FAILED
    except KeyboardInterrupt:
        print("fk: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
