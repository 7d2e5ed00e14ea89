"""`nvhc status`: what this node knows about itself, from the ledger. Reads nothing else, asks nobody."""

from __future__ import annotations

import argparse
import time
from typing import Any, Optional

from slurm_nvhc.act import healing
from slurm_nvhc.act import steps as st
from slurm_nvhc.cli import common, pause, show
from slurm_nvhc.judge import EPILOG, HEALTH_CHECK, PROLOG
from slurm_nvhc.model import finding as fd
from slurm_nvhc.model.protective import Exclusion, Hold
from slurm_nvhc.model.times import iso
from slurm_nvhc.policy import kill_switch, source
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run


def status(args: argparse.Namespace) -> int:
    """Exit code by the last runs' verdicts; 1 while the hooks are switched off, whatever those were."""
    name, where, off = common.node(args), common.site(args), common.hooks_off(args)
    out = common.console()
    if off is not None and not args.json:
        out.print(str(off), style="bold red")  # before anything that may fail: it may be why there is no ledger
    with common.open_ledger(args) as ledger:
        facts = _facts(ledger)
        paused = pause.in_force(ledger, time.time_ns())
    loaded = source.load(where.config, f"{where.state}/{name}", name, "", keep=False)
    latest = [run for run in facts["runs"].values() if run is not None]
    verdict = fd.worst(run.verdict for run in latest)
    switch = kill_switch.look(loaded.policy.kill_switch, loaded.policy.rules, kill_switch.READ_S)
    code = common.FOUND if off is not None or switch.everything else common.exit_code(verdict)
    if args.json:
        common.say_json(
            {
                **_as_json(name, loaded.policy.hash, loaded.policy.mode, verdict, facts, [t.detail for t in loaded.troubles]),
                "hooks_off": off._asdict() if off is not None else None,
                "cluster_switch": {k: v for k, v in switch._asdict().items() if k != "text"},
                "pause": paused._asdict() if paused is not None else None,
            }
        )
        return code
    out.print(f"{name}: policy {loaded.policy.hash}, mode {loaded.policy.mode}")
    for said in (str(switch), switch.problem):
        if said:
            out.print(said, style="bold red")
    if paused is not None:
        out.print(pause.line(paused, time.time_ns()), style="bold yellow")
    for trouble in loaded.troubles:
        out.print(f"  policy: {trouble.detail}")
    rows = [
        (hook, iso(run.ended_ns), f"job {run.job_id}" if run.job_id else "-", common.verdict_text(run.verdict), show.did(run.outcome))
        for hook, run in facts["runs"].items()
        if run is not None
    ]
    out.print(common.table("last run of each hook", ("hook", "when", "job", "verdict", "did"), rows))
    own = facts["own_drain"]
    if own is not None:
        out.print(f"our drain since {iso(own.set_ns)}: {own.reason}")
        check = facts["runs"][HEALTH_CHECK]
        for why in [s.get("why", "") for s in (check.steps if check is not None else ()) if s.get("kind") == st.NOTE]:
            if why.startswith(healing.NOT_YET):
                out.print(f"  {why.removeprefix('our drain ')}")
    for intent in facts["intents"]:
        out.print(f"not done yet since {iso(intent.since_ns)} ({intent.tries} tries): {intent.kind} {intent.reason}")
        if intent.next_ns > time.time_ns():
            out.print(f"  not before {iso(intent.next_ns)}" + (f": {intent.limited}" if intent.limited else ""))
    excluded = {e.uuid: e for e in facts["exclusions"]}
    gpus = [
        (common.gpu_name(g._asdict()), g.uuid, g.pci, g.model, _excluded(excluded.get(g.uuid), facts["holds"].get(g.uuid)))
        for g in facts["gpus"]
    ]
    out.print(common.table("GPUs", ("gpu", "uuid", "pci", "model", ""), gpus))
    for run in latest:
        show.findings(out, f"findings of the last {run.hook}", [f for f in run.findings if f.verdict != fd.OK])
    return code


def _excluded(one: Optional[Exclusion], hold: Optional[Hold]) -> str:
    if one is None:
        return ""
    way = show.way(one, hold)
    return f"{one.stage}{'' if way == '-' else f' ({way})'}: {one.code}"


def _facts(ledger: Ledger) -> dict[str, Any]:
    return {
        "runs": {hook: ledger.last_run(hook) for hook in (PROLOG, EPILOG, HEALTH_CHECK)},
        "own_drain": ledger.own_drain(),
        "intents": ledger.intents(),
        "exclusions": ledger.exclusions(),
        "holds": {hold.uuid: hold for hold in ledger.protective().holds},
        "gpus": sorted(ledger.known_gpus(), key=lambda g: g.pci),
    }


def _as_json(name: str, policy: str, mode: str, verdict: str, facts: dict[str, Any], troubles: list[str]) -> dict[str, Any]:
    own = facts["own_drain"]
    return {
        "schema": 1,
        "node": name,
        "policy": policy,
        "mode": mode,
        "policy_troubles": troubles,
        "verdict": verdict,
        "runs": {hook: run_json(run) if run is not None else None for hook, run in facts["runs"].items()},
        "own_drain": own._asdict() if own is not None else None,
        "intents": [i._asdict() for i in facts["intents"]],
        "exclusions": [e._asdict() for e in facts["exclusions"]],
        "holds": [h._asdict() for h in facts["holds"].values()],
        "gpus": [g._asdict() for g in facts["gpus"]],
    }


def run_json(run: Run) -> dict[str, Any]:
    """A run as JSON, without its snapshot."""
    out = run._asdict()
    out.pop("snapshot")
    out.pop("timeline")  # long: `nvhc explain JOB --at` shows a minute of it
    out["findings"] = [fd.to_json(f) for f in run.findings]
    out["changes"] = [c._asdict() for c in run.changes]
    return out
