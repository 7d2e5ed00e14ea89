"""In a pause nothing is changed in Slurm, not even by a step that mostly keeps the books: a late drain is not counted and taken back."""

from __future__ import annotations

from act_fakes import T0
from test_act_blast import KEY, REASON, WELL, Cluster, Node

from slurm_nvhc.act import outbox
from slurm_nvhc.act.execute import execute
from slurm_nvhc.act.plan import plan
from slurm_nvhc.act.quiet import label
from slurm_nvhc.model.protective import Intent, Pause


def late_and_beyond() -> tuple[Cluster, Node]:
    """Two nodes are out by us, which is the limit; a drain of ours that had no answer arrived on a third."""
    cluster = Cluster(["n01", "n02", "n03"])
    for name in ("n01", "n02", "n03"):
        cluster.set(name, REASON)
        cluster.seconds += 10
    node = Node(cluster, "n03")
    node.ledger.pending = [Intent("drain", REASON, T0, (KEY,), policy=node.policy.hash)]
    return cluster, node


def run(node: Node, pause: Pause | None) -> None:
    inp = node.input(WELL, "epilog")._replace(pause=pause)
    tools = node.tools(inp)._replace(quiet=label(pause, node.policy.mode))
    execute(plan(inp), tools)


def test_a_pause_takes_no_drain_back() -> None:
    cluster, node = late_and_beyond()
    run(node, Pause(node.now_ns + 10**12, "driver upgrade", "ada", T0))
    assert cluster.out == ["n01", "n02", "n03"]
    assert not [command for _, command in cluster.log if command in ("drain", "undrain")]
    assert node.ledger.own is not None
    assert node.pending(outbox.RECOUNT), "it is counted once the pause is over"


def test_after_the_pause_it_is_counted() -> None:
    cluster, node = late_and_beyond()
    run(node, Pause(node.now_ns + 10**12, "driver upgrade", "ada", T0))
    run(node, None)
    assert cluster.out == ["n01", "n02"]
    assert not node.pending(outbox.RECOUNT)
