"""What the commands share: exit codes, where things are, output as text or JSON."""

from __future__ import annotations

import argparse
import json
import os
import pwd
import sys
import time
from typing import Any, Final, Iterable, NamedTuple, Optional, Sequence

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slurm_nvhc.context import Context, Site, prepare
from slurm_nvhc.errors import InputError
from slurm_nvhc.judge import HEALTH_CHECK
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy import source
from slurm_nvhc.record.ledger import Ledger

OK: Final = 0
FOUND: Final = 1  # a finding, or an expectation that was missed
BAD_INPUT: Final = 2
TROUBLE: Final = 3  # unknown, or trouble of our own

LEDGER_WAIT_S: Final = 5.0
PLAIN_WIDTH: Final = 160  # columns when the output is no terminal

STYLES: Final = {fd.OK: "green", fd.WARN: "yellow", fd.FAIL: "bold red", fd.UNKNOWN: "magenta"}


def user() -> str:
    """The administrator, behind sudo too."""
    if os.environ.get("SUDO_USER"):
        return os.environ["SUDO_USER"]
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


def exit_code(verdict: str) -> int:
    return {fd.OK: OK, fd.UNKNOWN: TROUBLE}.get(verdict, FOUND)


def console() -> Console:
    terminal = sys.stdout.isatty()
    # No markup: reasons and names hold brackets of their own.
    return Console(highlight=False, markup=False, soft_wrap=not terminal, no_color=not terminal, width=None if terminal else PLAIN_WIDTH)


def say_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, default=str, ensure_ascii=True)
    sys.stdout.write("\n")


def verdict_text(verdict: str) -> Text:
    return Text(verdict.upper() if verdict == fd.FAIL else verdict, style=STYLES.get(verdict, ""))


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    out = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, title_style="bold")
    for column in columns:
        out.add_column(column, overflow="fold")
    for row in rows:
        out.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in row))
    return out


def add_site_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where things are")
    group.add_argument("--config", default="/etc/nvhc/policy.yaml", metavar="FILE", help="policy file (%(default)s)")
    group.add_argument("--state", default="/var/lib/nvhc", metavar="DIR", help="state directory (%(default)s)")
    group.add_argument("--run", default="/run/nvhc", metavar="DIR", help="run directory (%(default)s)")
    group.add_argument("--slurm-conf", default="", metavar="FILE", help="slurm.conf (default: SLURM_CONF, else the policy's)")
    group.add_argument("--node", default="", help="node name in Slurm (default: SLURMD_NODENAME, else the host name)")


def add_kill_switch_option(parser: argparse.ArgumentParser, text: str) -> None:
    parser.add_argument("--kill-switch", default="/etc/nvhc/disabled", metavar="FILE", help=f"{text} (%(default)s)")


class Off(NamedTuple):
    """All hooks are switched off: the file that does it, and since when."""

    file: str
    since: str

    def __str__(self) -> str:
        return f"hooks are OFF since {self.since}: {self.file} exists"


def hooks_off(args: argparse.Namespace) -> Optional[Off]:
    """None unless the kill switch is there, as the launchers see it (the hooks themselves never look)."""
    path = os.path.abspath(args.kill_switch)
    try:
        return Off(path, iso(os.stat(path).st_mtime_ns))
    except OSError:
        return None


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def site(args: argparse.Namespace) -> Site:
    config, state, run = (os.path.abspath(p) for p in (args.config, args.state, args.run))
    return Site(config, state, run, args.slurm_conf)


def node(args: argparse.Namespace) -> str:
    name = args.node or os.environ.get("SLURMD_NODENAME", "") or os.uname().nodename.partition(".")[0]
    if "/" in name or name in ("", ".", ".."):
        raise InputError("--node", "", f"{name!r} is not a node name")
    return str(name)


def context(args: argparse.Namespace, partition: str = "") -> Context:
    """For a look by hand: as a health check has it, but what judge remembers stays as it is. With the policy of a partition where
    one is named."""
    environment = {"SLURMD_NODENAME": node(args)}
    if os.environ.get("SLURM_CONF"):
        environment["SLURM_CONF"] = os.environ["SLURM_CONF"]
    found = prepare(HEALTH_CHECK, site(args), environment, time.monotonic(), "node", keep=False)
    if not partition:
        return found
    loaded = source.load(found.site.config, f"{found.site.state}/{found.node}", found.node, partition, keep=False)
    return found._replace(policy=loaded.policy)


def open_ledger(args: argparse.Namespace) -> Ledger:
    """The node's ledger, for reading. InputError when this node has none, MonitorError when it can not be used.

    A damaged one was set aside when this returns, and what is in its place knows little: that is said at once,
    and ``args.restored`` makes the command's exit code 3.
    """
    directory = os.path.join(os.path.abspath(args.state), node(args))
    if not os.path.isdir(directory):
        known = _nodes(args.state)
        hint = f"ledgers here: {', '.join(known)}" if known else "has a hook run on this node?"
        raise InputError(directory, "", "there is no ledger for this node", hint)
    ledger = Ledger.open(directory, LEDGER_WAIT_S)
    if ledger.restored:
        args.restored = ledger.restored
        sys.stderr.write(f"nvhc: {directory}: {ledger.restored}\n")
    return ledger


def _nodes(state: str) -> list[str]:
    try:
        return sorted(e.name for e in os.scandir(state) if os.path.exists(f"{e.path}/ledger.sqlite3"))[:8]
    except OSError:
        return []


def gpu_name(facts: Any) -> str:
    """'gpu3' by NVML index, or 'gpu?'."""
    index = facts.get("nvml_index") if facts else None
    return f"gpu{index}" if index is not None else "gpu?"


def plain(value: Any) -> str:
    """A reading for people; no data as what it is."""
    if value is None:
        return "-"
    if isinstance(value, dict) and "no" in value:
        return f"no data ({value['no']})"
    if isinstance(value, (list, tuple)) and len(value) == 2 and isinstance(value[0], str):
        return f"no data ({value[0]})"
    return f"{value:g}" if isinstance(value, float) else str(value)


def die(problem: Exception, code: int) -> int:
    sys.stderr.write(f"nvhc: {problem}\n")
    return code
