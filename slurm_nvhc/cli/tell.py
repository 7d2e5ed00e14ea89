"""Telling the site's programs what an administrator did by hand. A failure is said at once, so nothing is kept to be told again."""

from __future__ import annotations

import argparse
import sys
import time

from slurm_nvhc import aftermath
from slurm_nvhc.act import site_hooks
from slurm_nvhc.cli import common
from slurm_nvhc.model import finding as fd
from slurm_nvhc.policy import source


def by_hand(args: argparse.Namespace, event: str, reason: str = "", why: str = "", uuid: str = "") -> None:
    """event: of site_hooks.EVENTS. The command's own exit code does not depend on it."""
    where, node = common.site(args), common.node(args)
    policy = source.load(where.config, f"{where.state}/{node}", node, "", keep=False).policy
    program = site_hooks.program(policy.site_hooks, event)
    if not program or policy.mode == fd.OBSERVE:
        return
    now_ns = time.time_ns()
    name = site_hooks.ident(event, node, now_ns, (reason, uuid))
    document = {
        **aftermath.told_of(event, name, node, now_ns, reason, why),
        "cluster": aftermath.cluster_name(where.slurm_conf or policy.slurm.conf),
        "hook": "by hand",
        "who": common.user(),
        "mode": policy.mode,
        "uuid": uuid,
        "job": None,
        "findings": [],
        "suspects": [],
        "remedies": [],
        "evidence": "",
    }
    ran = site_hooks.run(program, document, policy.site_hooks.timeout_s)
    if not ran.ok:
        sys.stderr.write(f"nvhc: on_{event}: {ran.told}\n")
