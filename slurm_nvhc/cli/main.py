"""The `nvhc` command line: arguments in, one of the commands, an exit code out.

Exit codes: 0 ok; 1 a finding, a warning or a missed expectation; 2 bad input;
3 unknown, or trouble of our own.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Callable, Optional, Sequence

from slurm_nvhc import __version__
from slurm_nvhc.cli import common
from slurm_nvhc.errors import MonitorError, NvhcError

EPILOG_TEXT = """\
exit codes: 0 ok, 1 finding or missed expectation, 2 bad input, 3 unknown or trouble of our own

to begin:
  nvhc demo                 see the whole thing on a simulated node
  nvhc check                look at this node now; nothing is done
  nvhc doctor               is this node set up right? what is missing, what to do
  nvhc hooks install        write the launchers and print the slurm.conf lines
  nvhc explain 8812         what happened to a job's GPUs, and why
"""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="nvhc",
        description="Health checks around every Slurm job on NVIDIA GPU nodes.",
        epilog=EPILOG_TEXT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"nvhc {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def command(
        parent: argparse._SubParsersAction[argparse.ArgumentParser], name: str, run: str, text: str, more: str = "", site: bool = True
    ) -> argparse.ArgumentParser:
        sub = parent.add_parser(
            name,
            help=text,
            description=f"{text}\n\n{more}".strip(),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        sub.set_defaults(call=run)
        common.add_json_option(sub)
        if site:
            common.add_site_options(sub)
        return sub

    demo = command(commands, "demo", "demo:demo", "the main job on a simulated node: no root, no Slurm, no GPU needed", site=False)
    demo.add_argument("--keep", metavar="DIR", default="", help="keep policy, ledger and launchers of the demo in DIR to look at")

    check = command(
        commands, "check", "check:check", "read this node now, judge it, do nothing",
        "With --since, also what changed since a capture. With --now, judge a capture instead of this node.",
    )  # fmt: skip
    check.add_argument("--since", metavar="CAPTURE", default="", help="compare with this capture")
    check.add_argument("--now", metavar="CAPTURE", default="", help="judge this capture instead of reading the node")
    check.add_argument("-v", "--verbose", action="store_true", help="all evidence of each finding")
    common.add_kill_switch_option(check, "say so if this file switches the hooks off")

    doctor = command(
        commands, "doctor", "doctor:doctor", "is this machine set up so that the hooks can do their work? looks, changes nothing",
        "One line per thing looked at, with what to do. Exit code: 0 all ok, 1 something to do, 3 only things it could not see.\n"
        "Run it as root: an ordinary user is shown what he may see. docs/doctor.md explains each line.",
    )  # fmt: skip
    doctor.add_argument("--libdir", default="/usr/libexec/nvhc", metavar="DIR", help="where the launchers are (%(default)s)")
    common.add_kill_switch_option(doctor, "the file that switches all hooks off")

    status = command(
        commands, "status", "status:status", "what this node knows about itself: last runs, drains, exclusions",
        "Exit code 1 while the hooks are switched off.",
    )  # fmt: skip
    common.add_kill_switch_option(status, "the file that switches all hooks off")

    explain = command(
        commands, "explain", "explain:explain", "what happened, by which numbers and rule, and what was done",
        "JOB is a job id; GPU is gpu3, a UUID or its beginning, or a PCI address; NODE is the node's name.",
    )  # fmt: skip
    explain.add_argument("what", metavar="JOB|GPU|NODE")
    explain.add_argument("--at", default="", metavar="TIME", help="of a job: what is known around 14:10, or 2026-12-01T14:10 (UTC)")

    evidence = command(
        commands, "evidence", "evidence:write", "write an evidence bundle of this node now: before a reset, a reboot, an exchange",
        "The hooks write one with each drain and exclusion. What is in it: docs/remediation.md.",
    )  # fmt: skip
    evidence.add_argument("gpu", nargs="?", default="", metavar="GPU", help="gpu3, a UUID, or a PCI address (default: what is found)")
    evidence.add_argument("--bug-report", action="store_true", help="run nvidia-bug-report.sh too, for at most 10 minutes")
    evidence.add_argument("--list", action="store_true", help="show the bundles that there are")

    capture = command(commands, "capture", "check:capture", "write all readings of this node to a file, to compare or to send")
    capture.add_argument("-o", "--output", default="-", metavar="FILE", help="where to (default: standard output)")

    replay = command(
        commands, "replay", "replay:replay", "run a scenario file through the real hooks; exit 0 only if its expectation holds",
        "A scenario describes a node, its faults and what should come of them: docs/scenarios.md.", site=False,
    )  # fmt: skip
    replay.add_argument("file", metavar="FILE", nargs="+", help="scenario file")

    simulate = command(
        commands, "simulate", "simulate:simulate", "judge the stored runs again: what would another policy have done?",
        "Nothing is done and Slurm is not asked. Compares with the policy in force, over what the ledger keeps (record.keep).\n"
        "Exit code: 0 nothing would differ, 1 something would, 2 the new policy is wrong, 3 no run could be judged.",
    )  # fmt: skip
    simulate.add_argument("--policy", required=True, metavar="NEW", help="the policy file to try")
    simulate.add_argument("--since", default=None, metavar="TIME", help="only runs of this long before the newest: 30d, 12h (default: all)")

    gpu = commands.add_parser("gpu", help="GPUs that jobs do not get to see, or that are gone").add_subparsers(
        metavar="COMMAND", required=True
    )
    named = "gpu3, a UUID or its beginning, or a PCI address"
    listed = command(gpu, "list", "gpu:show_list", "list excluded GPUs")
    listed.add_argument("--all", action="store_true", help="exclusions that have ended too")
    exclude = command(
        gpu, "exclude", "gpu:exclude", "take just this GPU out, under the same conditions as the policy does",
        "narrow: it is hidden from jobs from their prolog on. quarantine: a placeholder job holds it, at once when it is free,\n"
        "else from the epilog of the job that uses it. Where neither can be kept up it is refused: then drain the node.\n"
        "A placeholder job that Slurm refuses leads to a drain, as it does by the policy.",
    )  # fmt: skip
    exclude.add_argument("gpu", metavar="GPU", help=named)
    exclude.add_argument("--why", required=True, metavar="TEXT", help="the reason, for `nvhc gpu list` and the drain that may follow")
    exclude.add_argument("--way", choices=("narrow", "quarantine"), default="", help="(default: the policy's)")
    exclude.add_argument("--partition", default="", metavar="P", help="go by the policy for jobs of this partition")
    verify = command(
        gpu, "verify", "gpu:verify", "the fault of an excluded GPU was proven",
        "From then on only `nvhc gpu release --force`, or another card in its place, ends the exclusion.",
    )  # fmt: skip
    verify.add_argument("gpu", metavar="GPU", help=named)
    verify.add_argument("--why", required=True, metavar="TEXT", help="how it was proven")
    release = command(gpu, "release", "gpu:release", "give an excluded GPU back to jobs")
    release.add_argument("gpu", metavar="GPU", help=named)
    release.add_argument("--why", default="", metavar="TEXT", help="what was done about it")
    release.add_argument("--force", action="store_true", help="even though its fault was proven")
    forget = command(
        gpu, "forget", "gpu:forget", "do not miss a GPU that was taken out on purpose",
        "For a GPU that is not to come back. One that is still there is known again at the next run.",
    )  # fmt: skip
    forget.add_argument("gpu", metavar="GPU", help=named)

    screen = command(
        commands, "screen", "screen:screen", "run the site's command on each GPU and compare what it computed (docs/screen.md)",
        "The command is the policy's screen.command. Inside an allocation it uses the job's GPUs, else the node must be drained and\n"
        "empty. Digests are held against the other GPUs, the same GPU's past, and itself. Nothing is drained for it.\n"
        "Exit code: 0 nothing differs, 1 something does, 3 a GPU gave no result or was left alone.",
    )  # fmt: skip
    screen.add_argument("--gpus", default="", metavar="LIST", help="gpu3,gpu5 (default: all that may be used)")
    screen.add_argument("--repeat", type=int, default=2, metavar="N", help="runs on each GPU; once can not convict it (%(default)s)")
    screen.add_argument("--together", action="store_true", help="all GPUs at once, instead of one after the other")
    screen.add_argument("--forget", action="store_true", help="do not hold it against the past: what they give now is what is kept")
    screen.add_argument("--partition", default="", metavar="P", help="go by the policy for jobs of this partition (default: the job's)")

    isolate = command(
        commands, "isolate", "isolate:isolate", "which part is bad? traffic between chosen GPUs, counters around it (docs/isolate.md)",
        "The command that moves data is the policy's isolate.traffic, or --traffic. Inside an allocation it uses the job's GPUs,\n"
        "else the node must be drained and empty. An interrupted search goes on with the same command. Nothing is drained for it.\n"
        "Exit code: 0 nothing found, 1 something found, 2 bad input, 3 it could not tell.",
    )  # fmt: skip
    isolate.add_argument("--gpus", default="", metavar="LIST", help="gpu0,gpu3 (default: all that may be used)")
    isolate.add_argument("--traffic", default="", metavar="COMMAND", help="what moves data (default: the policy's isolate.traffic)")
    isolate.add_argument("--seconds", default="", metavar="TIME", help="of traffic per step (default: the policy's, 30s)")
    isolate.add_argument("--repeat", type=int, metavar="N", help="where nothing is found, so often again (2)")
    isolate.add_argument("--max-steps", type=int, metavar="N", help="no more steps of traffic than this (12)")
    isolate.add_argument("--fresh", action="store_true", help="do not go on with an interrupted search")
    isolate.add_argument("--swapped", default="", metavar="GPU,GPU", help="these cards were exchanged: search, and compare with before")
    isolate.add_argument("--before", default="", metavar="FILE", help="what `nvhc isolate --json` wrote before (default: what is kept)")
    isolate.add_argument("--plan", action="store_true", help="show what would run if nothing were found; run nothing")
    isolate.add_argument("--partition", default="", metavar="P", help="go by the policy for jobs of this partition (default: the job's)")

    diag = command(
        commands, "diag", "diag:diag", "run a DCGM diagnostic now, on GPUs that nobody uses (docs/diagnostics.md)",
        "From level 2 on it loads the GPUs: inside an allocation it uses the job's, else the node must be drained and empty.\n"
        "A GPU with processes, in MIG mode or without an answer is left alone. Nothing is drained for what it finds.\n"
        "Exit code: 0 passed, 1 something failed or warned, 3 a GPU gave no result or was left alone.",
    )  # fmt: skip
    diag.add_argument("--level", type=int, choices=(1, 2, 3, 4), help="(default: 1, which loads no GPU)")
    diag.add_argument("--tests", default="", metavar="LIST", help="tests by name instead of a level: memory,pcie")
    diag.add_argument("--gpus", default="", metavar="LIST", help="gpu3,gpu5 (default: all that may be used)")
    diag.add_argument("--timeout", default="", metavar="TIME", help="then it is ended (default: twice what it usually takes)")
    diag.add_argument("--parameter", action="append", default=[], metavar="TEST.NAME=VALUE", help="as DCGM takes it; may be repeated")
    diag.add_argument("--require", default="", metavar="LIST", help="tests that must give a result (default: the policy's)")
    diag.add_argument("--via", choices=("auto", "api", "dcgmi"), default="", help="how the engine is asked (default: the policy's)")
    diag.add_argument("--stop", action="store_true", help="end the diagnostic that runs in the engine, whoever began it")
    diag.add_argument("--partition", default="", metavar="P", help="go by the policy for jobs of this partition (default: the job's)")

    sweep = command(
        commands, "sweep", "sweep:sweep", "one diagnostic a node, as Slurm jobs of low priority (docs/diagnostics.md)",
        "Each node's job runs `nvhc diag` there and brings its answer back. What arrived is kept, and the same command goes on\n"
        "where it stopped. What follows -- goes to nvhc diag, as in: -- --require pcie. Run it as root, where jobs can be submitted.\n"
        "Exit code: 0 all nodes passed, 1 something failed or warned, 3 of some node nothing is known.",
    )  # fmt: skip
    sweep.add_argument("--partition", default="", metavar="P", help="whose nodes, and where the jobs are submitted")
    sweep.add_argument("--nodes", default="", metavar="LIST", help="only these: n[1-4],n7")
    sweep.add_argument("--level", type=int, choices=(1, 2, 3, 4), help="(default: 2)")
    sweep.add_argument("--tests", default="", metavar="LIST", help="tests by name instead of a level")
    sweep.add_argument("--screen", action="store_true", help="run `nvhc screen` instead (docs/screen.md)")
    sweep.add_argument("--at-once", type=int, default=8, metavar="N", help="jobs in Slurm at a time, waiting ones included (%(default)s)")
    sweep.add_argument("--wait", default="12h", metavar="TIME", help="after which it ends, whatever is left (%(default)s)")
    sweep.add_argument("--patience", default="10m", metavar="TIME", help="a job that waits longer gives way to an idle node (%(default)s)")
    sweep.add_argument("--tries", type=int, default=3, metavar="N", help="jobs for a node whose job was pre-empted or lost (%(default)s)")
    sweep.add_argument("--every", default="15s", metavar="TIME", help="how often Slurm is asked (%(default)s)")
    sweep.add_argument("--time", type=int, default=0, metavar="MINUTES", help="time limit of each job (default: by what is tested)")
    sweep.add_argument("--nice", type=int, default=2147483645, metavar="N", help="of each job (default: last in the queue)")
    sweep.add_argument("--qos", default="", metavar="Q", help="of each job")
    sweep.add_argument("--account", default="", metavar="A", help="of each job")
    sweep.add_argument("--reservation", default="", metavar="R", help="of each job")
    sweep.add_argument("--nvhc", default="", metavar="COMMAND", help="nvhc on the nodes (default: where it is here)")
    sweep.add_argument("--dir", default="", metavar="DIR", help="where results are kept (default: below --state)")
    sweep.add_argument("--again", action="store_true", help="nodes that have a result too")
    sweep.add_argument("--max-age", default="", metavar="TIME", help="nodes whose result is older count as without: 7d")
    sweep.add_argument("--csv", default="", metavar="FILE", help="write the table there as well")
    sweep.add_argument("--dry-run", action="store_true", help="say what would be submitted, do nothing")
    sweep.add_argument("--show", default="", metavar="DIR", help="show the results that are kept there")
    sweep.add_argument("more", nargs="*", metavar="-- OPTION", help="options for nvhc diag on the nodes")

    done = command(
        commands, "release", "release:release", "the node was repaired: end our own drain, take what it was for as dealt with",
        "Only a drain that nvhc set and nobody changed since; excluded GPUs stay excluded (nvhc gpu release).",
    )  # fmt: skip
    done.add_argument("--why", default="", metavar="TEXT", help="what was done about it, for the log")

    undo = command(
        commands, "undo", "undo:undo", "take back what nvhc did lately; nothing that somebody else did is touched",
        "On a node: its drain by nvhc, GPUs that nvhc excluded, and what is still to be done. --cluster: from any machine with\n"
        "Slurm's commands, the drains that nvhc's reasons show, after a look at the list. Exit code 1 when something was left.",
    )  # fmt: skip
    undo.add_argument("--since", required=True, metavar="TIME", help="how far back: 1h, 30m, 2d")
    undo.add_argument("--cluster", action="store_true", help="all nodes that nvhc drained, by the reason in Slurm")
    undo.add_argument("--partition", default="", metavar="P", help="with --cluster: only nodes of this partition")
    undo.add_argument("--yes", action="store_true", help="do not ask")
    undo.add_argument("--dry-run", action="store_true", help="say what would be undone, do nothing")

    maintenance = command(
        commands, "pause", "pause:pause", "maintenance on this node: hooks look and record, and do nothing",
        "Without options: is it paused? Excluded GPUs stay excluded. What the driver logs meanwhile is not drained for later.",
    )  # fmt: skip
    maintenance.add_argument("--until", default="", metavar="TIME", help="2h, 14:00 or 2026-12-01T14:00 (UTC); 7 days at most")
    maintenance.add_argument("--why", default="", metavar="TEXT", help="for whoever comes next")
    maintenance.add_argument("--end", action="store_true", help="end it now")

    baseline = commands.add_parser("baseline", help="what is normal on this node, learned once of a healthy look").add_subparsers(
        metavar="COMMAND", required=True
    )
    command(
        baseline, "show", "baseline:show", "what was learned beside what the node shows now",
        "Exit code 1 where something differs, 3 where nothing can be compared.",
    )  # fmt: skip
    accept = command(
        baseline, "accept", "baseline:accept", "take what the node shows now for normal, e.g. after an upgrade",
        "ENTITY is gpu3, gpu3/link11, a UUID, a PCI address, node, or the name of a switch or port as `show` gives it,\n"
        "with all its links or ports. --all takes the configuration of the whole node; what is down or gone has to be named.",
    )  # fmt: skip
    accept.add_argument("entity", nargs="?", default="", metavar="ENTITY")
    accept.add_argument("--all", action="store_true", help="the whole node")
    accept.add_argument("--field", default="", metavar="NAME", help="only this reading")

    rates = command(
        commands, "rates", "rates:rates", "how fast error counters grow here, by version: did an upgrade change it?",
        "Counted from look to look of all hooks, exact growth only.",
    )  # fmt: skip
    rates.add_argument("--by", default="driver,vbios,fabric_manager,model", metavar="LIST", help="versions to tell apart (%(default)s)")

    policy = commands.add_parser("policy", help="check a policy, show the one in force").add_subparsers(metavar="COMMAND", required=True)
    policy_check = command(policy, "check", "policy:check", "say what is wrong with a policy file, by line and key")
    policy_check.add_argument("file", nargs="?", default="", metavar="FILE", help="policy file (default: --config)")
    policy_check.add_argument("--libdir", default="/usr/libexec/nvhc", metavar="DIR", help="where the launchers are (%(default)s)")
    policy_show = command(policy, "show", "policy:show", "print the policy in force, overlays applied")
    policy_show.add_argument("--partition", default="", help="as for a job of this partition")
    policy_show.add_argument("--model", default="", help="as for GPUs of this model")
    policy_show.add_argument("--schema", action="store_true", help="print the JSON Schema of policy files instead")

    hooks = commands.add_parser("hooks", help="put the hooks on this node, or take them away").add_subparsers(
        metavar="COMMAND", required=True
    )
    for name, text in (
        ("install", "write the launchers that slurmd runs, and print the slurm.conf lines"),
        ("remove", "take the launchers away; a harmless stub stays while slurm.conf names one"),
    ):
        sub = command(hooks, name, f"hooks:{name}", text)
        sub.add_argument("--libdir", default="/usr/libexec/nvhc", metavar="DIR", help="where the launchers go (%(default)s)")
        common.add_kill_switch_option(sub, "a file that switches all hooks off while it exists")
        sub.add_argument("--dry-run", action="store_true", help="say what would be done, do nothing")
        if name == "remove":
            sub.add_argument("--purge", action="store_true", help="delete ledger and run directory too")
    return root


def main(argv: Optional[Sequence[str]] = None) -> int:
    args = parser().parse_args(argv)
    module, _, function = str(args.call).partition(":")
    call: Callable[[argparse.Namespace], int] = getattr(importlib.import_module(f"slurm_nvhc.cli.{module}"), function)
    try:
        code = call(args)
        sys.stdout.flush()
        return common.TROUBLE if getattr(args, "restored", "") else code
    except MonitorError as exc:
        return common.die(exc, common.TROUBLE)
    except NvhcError as exc:
        # What was asked for may be in the ledger that was set aside.
        return common.die(exc, common.TROUBLE if getattr(args, "restored", "") else common.BAD_INPUT)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has seen enough
        return common.OK
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
