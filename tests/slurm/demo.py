"""`./run demo --slurm`: the main job on a private real Slurm, started and ended by this script. Needs root.

slurmctld and slurmd are Debian's, the hooks are installed as on a node, the GPUs are simulated.
"""

from __future__ import annotations

import shlex
import subprocess
import sys

import machine
from site_nvhc import Held, Site

POLICY = "schema: 1\nrules:\n  nvl_storm: {mode: enforce}\n"
NARROWS = POLICY + "narrow: {enabled: true, min_gpus: 2}\n"


def main() -> int:
    why_not = machine.why_not()
    if why_not:
        print(f"demo --slurm: {why_not}", file=sys.stderr)
        return 2
    say("starting munged, slurmctld and slurmd on this machine, in a directory of their own")
    with Site(policy=POLICY, narrowing=True) as site:
        drain(site)
        narrow(site)
    say("Slurm is stopped, everything is removed")
    return 0


def drain(site: Site) -> None:
    job = Held(site.cluster, "--gres=gpu:4").wait_started()
    say(f"job {job.job_id} runs on 4 GPUs of n1; now link11 of gpu3 begins to retry (21200 times in 41 simulated minutes)")
    site.storm()
    job.finish()
    site.cluster.wait_node("drained")
    show(site, "sinfo", "-R", "-o", "%E  %N  %u")
    explain(site, job.job_id)


def narrow(site: Site) -> None:
    say("the administrator resumes the node, and writes a policy that keeps the other GPUs working")
    site.write_policy(NARROWS)
    show(site, "scontrol", "update", "nodename=n1", "state=resume")
    site.cluster.wait_node("idle")
    job = Held(site.cluster, "--gres=gpu:4").wait_started()
    say(f"the link does it again while job {job.job_id} runs")
    site.storm()
    job.finish()
    site.cluster.wait_node("idle")
    show(site, "sinfo", "-N", "-o", "%N %T %G")
    say("the next job asks for all 8 GPUs; this is what it sees:")
    shown = site.cluster.srun("--gres=gpu:8", "sh", "-c", "echo CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES").stdout
    print("".join(f"  {line}\n" for line in shown.splitlines()))


def show(site: Site, *command: str) -> None:
    print(f"$ {shlex.join(command)}")
    print("".join(f"  {line}\n" for line in site.cluster.run(*command).stdout.splitlines()), end="")


def explain(site: Site, job_id: str) -> None:
    print(f"$ nvhc explain {job_id}")
    command = [sys.executable, "-m", "slurm_nvhc.cli.main", "explain", job_id, "--node", "n1", "--state", site.options.state]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print("".join(f"  {line}\n" for line in done.stdout.splitlines()))


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
