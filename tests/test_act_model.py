"""The planner and the executor against the model of bench/planner: no rule breaks, and a broken rule of ours is found.

The long run is `./run bench planner`; docs/planner.md says what is modelled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))
from planner import main, page, trace
from planner.actors import NO_MANNER, do
from planner.hook import machine
from planner.mutations import MUTATIONS, WHERE, mutated
from planner.truth import CAPPED, DOUBLED, FAULTY, FOREIGN, LOST, RULES, STALE
from planner.walk import Failure, play, walk
from planner.world import Setting, Step, World

STEPS = 10_000


@pytest.fixture(autouse=True)
def modelled() -> Iterator[None]:
    with machine():
        yield


def told(failure: Failure) -> str:
    return f"{failure.rule}: {failure.what}\n{json.dumps({k: v for k, v in trace.as_json(failure).items() if k in ('setting', 'steps')})}"


def test_no_rule_breaks() -> None:
    report = walk("tests", STEPS)
    assert not report.failures, told(report.failures[0])
    assert report.steps == STEPS
    # What is not met is not tested.
    for what in ("drains applied", "resumes applied", "hooks killed", "foreign drain touched in the window"):
        assert report.counts.get(what, 0) > 0, what


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_of_the_planner_is_found(name: str) -> None:
    with mutated(name):
        # Found within 10,000 steps; a change of the planner makes other walks of these, so there is a second chance.
        walks = (walk(seed, STEPS, shrinks=False, mood=WHERE.get(name, "")) for seed in ("mutation", "again"))
        assert any(report.failures for report in walks), f"{name}: alive"


def test_a_trace_is_cut_down_and_can_be_played_again(tmp_path: Path) -> None:
    with mutated("the prolog fails a job on a node in service"):
        (failure,) = walk("trace", STEPS).failures
        assert len(failure.steps) < 8
        file = tmp_path / "trace.json"
        trace.write(str(file), trace.as_json(failure))
        setting, steps = trace.read(str(file))
        broken = play(setting, steps)
        assert broken is not None
        assert broken.rule == failure.rule
    assert play(setting, steps) is None, "without the mutation nothing breaks"


def test_the_same_seed_walks_the_same_way() -> None:
    assert walk("again", 2000) == walk("again", 2000)


CHECK = Step("checks", 0, (NO_MANNER,))


ORDINARY = Setting()


def broken_by(*steps: Step, setting: Setting = ORDINARY) -> str:
    broken = play(setting, steps)
    return broken.rule if broken is not None else ""


XID = Step("breaks", 0, ("XID-NVLINK", 2))
LOST_GPU = Step("breaks", 0, ("GPU-LOST", 0))
RESUMES = Step("resumes")


def test_an_intent_that_outlived_its_drain() -> None:
    """The ledger fails between the two; somebody resumes the node: the event is answered."""
    for keeps in (False, True):
        for fails in range(8):
            first = Step("checks", 0, ((None, False, fails, None),))
            assert broken_by(XID, first, RESUMES, CHECK, setting=Setting(keeps=keeps)) == "", (keeps, fails)


def test_an_event_that_was_found_again_while_slurm_did_not_answer() -> None:
    """Our drain for it is ended before Slurm answers again: the intent for the same event is answered as well."""
    again = (Step("wait", 0, (60,)), Step("slurmctld", 0, ("hung",)), CHECK, Step("slurmctld", 0, ("ok",)))
    for keeps in (False, True):
        assert broken_by(XID, CHECK, *again, RESUMES, CHECK, setting=Setting(keeps=keeps)) == "", keeps


def test_killed_at_any_moment_while_a_drain_is_settled() -> None:
    for at in range(16):
        killed = Step("checks", 0, ((None, False, None, at),))
        assert broken_by(XID, CHECK, RESUMES, killed, CHECK) == "", at
        assert broken_by(XID, killed, RESUMES, CHECK, CHECK, setting=Setting(keeps=True)) == "", at


def test_a_node_that_goes_down_with_the_reason_of_an_ended_drain() -> None:
    """As 24.11 keeps it: it is not our drain, and what is found now is remembered for when the node returns."""
    down = Step("quiet", 0, (2,))
    assert broken_by(LOST_GPU, CHECK, RESUMES, down, CHECK) == ""
    for at in range(12):
        assert broken_by(LOST_GPU, CHECK, Step("checks", 0, (NO_MANNER,), ((0, RESUMES), (at, down)))) == "", at


def test_a_drain_for_a_gpu_that_was_released_meanwhile() -> None:
    refused = Step("starts", 0, (1, False, "", (None, True, None, None)))
    assert broken_by(Step("excludes", 0, (0,)), refused, Step("releases_gpu"), Step("wait", 0, (60,)), CHECK) == ""


def test_resumed_the_moment_it_is_drained() -> None:
    """A prolog that failed its job then would have Slurm drain the node again."""
    for at in range(20):
        assert broken_by(Step("excludes", 0, (0,)), Step("starts", 0, (1, False, "", NO_MANNER), ((at, RESUMES),))) == "", at


def test_extended_and_the_intent_was_not_ended() -> None:
    second = XID._replace(args=("XID-NVLINK", 1))
    for fails in range(8):
        extends = Step("checks", 0, ((None, False, fails, None),))
        assert broken_by(XID, CHECK, second, extends, RESUMES, CHECK, setting=Setting(keeps=False, extend=True)) == "", fails


def test_the_model_sees_what_it_is_for() -> None:
    """Its rules, by deeds that nothing of ours would do."""
    world = World(Setting(hard=1, nodes=2))
    world.do = do
    for step in (Step("breaks_everywhere", 0, ("GPU-LOST", 1)), CHECK, CHECK._replace(node=1)):
        do(world, step)
    first, second = world.cells
    assert (first.node.owner, second.node.owner) == ("nvhc", "")
    assert [i.kind for i in second.kept.state.intents] == ["drain"], "limited, and not forgotten"
    assert first.kept.state.own_drain is not None
    assert {FOREIGN, FAULTY, LOST, DOUBLED, STALE, CAPPED} <= set(RULES)


def test_bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert main.main(["--steps", "400", "--processes", "1", "--windows", "0", "--json", str(out)]) == 0
    figures = json.loads(out.read_text())
    assert (figures["schema"], figures["steps"], figures["failures"]) == (1, 400, [])
    assert set(figures["broken"]) == set(RULES)
    assert "400 steps" in capsys.readouterr().out
    assert main.main(["--replay", str(tmp_path / "absent")]) == 2
    assert "absent: can not be read" in capsys.readouterr().err


def test_page() -> None:
    """The page shows the figures that are kept beside it."""
    kept = json.loads(Path(page.FIGURES).read_text())
    text = Path(page.PAGE).read_text()
    assert page.with_block(text, page.block(kept)) == text
    assert sum(kept["broken"].values()) == 0
    assert kept["steps"] >= 1_000_000
