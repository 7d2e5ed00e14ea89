"""The field reports that concern judgement under the packaged policy: what an administrator gets who wrote no rule.

The node and the steps are those of the report's own scenario; its policy is left out (but for what it says about Slurm
and narrowing), and so are its expectations.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_nvhc.scenario import load
from slurm_nvhc.scenario.run import run

FOLDER = Path(__file__).parent / "scenarios"

# scenario -> verdict of its last hook run, and what that run did
VERDICTS: dict[str, tuple[str, Any]] = {
    "R01-lifetime-counter-unchanged": ("ok", "none"),
    "R01-one-more-replay": ("ok", "none"),  # one error is no evidence; it is counted towards it
    "R02-counter-back-to-zero": ("ok", "none"),
    "R02-small-count-since-reset": ("warn", "none"),
    "R06-old-xid-stays-set": ("ok", "none"),
    "R06-another-code-is-no-difference": ("warn", "note"),  # the new one, 13, is the application's
    "R06-fatal-xid-present-at-prolog": ("fail", ["drain", "fail_job"]),
    "R11-minor-is-not-the-nvml-index": ("warn", "none"),  # 20 replays are much, but this rule observes
    "R11-fault-on-nvml-index-0-is-not-this-jobs": ("ok", "none"),
    "R20-fallen-off-in-three-lines": ("fail", ["drain", "fail_job"]),
    "R20-silent-loss-before-the-job": ("fail", ["drain", "fail_job"]),
    "R21-site-drains-on-31": ("warn", "note"),
    "R27-dcgm-health-says-links-down": ("ok", "none"),
    "R28-up-at-the-second-look": ("ok", "none"),
    "R28-down-at-both-looks": ("warn", "none"),  # within five minutes of boot
    "R49-remap-failure-in-the-epilog": ("fail", "drain"),
    "R49-v100-blank": ("ok", "none"),
    "R52-few-replays-in-hours": ("ok", "none"),
    "R52-same-number-in-a-minute": ("warn", "note"),
    "R72-own-gpus": ("ok", "none"),  # the neighbour's job ends last
    "R72-the-neighbours-gpus": ("warn", "none"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict_of_the_packaged_policy(name: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    verdict, action = VERDICTS[name]
    scenario = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    policy = {k: v for k, v in scenario.pop("policy", {}).items() if k in ("slurm", "narrow", "partitions")}
    if policy:
        scenario["policy"] = policy
    scenario["expect"] = [{"after": "", "verdict": verdict, "action": action}]
    report = run(load.parse(yaml.safe_dump(scenario), name), str(tmp_path))
    assert report.ok, [(c.where, c.wanted, c.seen) for c in report.checks if not c.ok]
