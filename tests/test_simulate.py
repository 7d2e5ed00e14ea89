"""`nvhc simulate`: the stored runs judged again come out as they were, and another policy's difference is told."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Callable

import pytest
import yaml
from build import policy, rule
from site_ import Site

from slurm_nvhc import simulate as sim
from slurm_nvhc.context import Context
from slurm_nvhc.context import Site as Places
from slurm_nvhc.judge import Judgement
from slurm_nvhc.model.finding import Decision, Evidence, Finding
from slurm_nvhc.model.learned import Lesson
from slurm_nvhc.model.snapshot import Snapshot, Trouble
from slurm_nvhc.pipeline import run_hook
from slurm_nvhc.policy import compiled, source
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Cusum, Level, Peers, Poisson
from slurm_nvhc.record.ledger import Ledger
from slurm_nvhc.record.run import Run
from slurm_nvhc.sense.sim.world import World

ENFORCED = {"rules": {"nvl_storm": {"mode": "enforce"}}}
DAY_S = 86400.0


def small_node(root: Path, **policy: Any) -> Site:
    """Two bridged GPUs: a fraction of a board's readings, and so of its time."""
    site = Site(root, preset="a100-pcie-nvlink-2", policy=policy)
    (root / "gres.conf").write_text("Name=gpu File=/dev/nvidia[0-1]\n")
    return site


def policy_of(site: Site) -> sim.PolicyOf:
    return lambda partition: source.load(str(site.config), str(site.root / "state" / "n1"), "n1", partition, keep=False).policy


def of_text(site: Site, **sections: Any) -> sim.PolicyOf:
    document = compile_policy(yaml.safe_dump({"schema": 1, **sections}), "new.yaml")
    return lambda partition: compiled.resolve(document, "n1", partition)


def simulated(site: Site, new: sim.PolicyOf | None = None, since_ns: int = 0) -> sim.Report:
    with site.ledger() as ledger:
        return sim.simulate(ledger, "n1", policy_of(site), new or policy_of(site), since_ns)


def hook(site: Site, name: str, job: int | None = None, gpus: str = "0,1") -> None:
    """As Site.hook, in this process: a month of a node is many runs."""
    places = Places(str(site.config), str(site.root / "state"), str(site.root / "run"), str(site.slurm_conf))
    run_hook(name, places, site.environment(job, gpus), time.monotonic(), "n1")


def new_file(site: Site, **sections: Any) -> str:
    path = site.root / "new.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(site.config.read_text()), **sections}))
    return str(path)


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Jobs with a storm, a few replays, application Xids, a lost GPU that comes back, and health checks in between."""
    site = small_node(tmp_path_factory.mktemp("month"), narrow={"enabled": True})
    site.slurm()
    happenings: list[Callable[[World], object]] = [
        lambda w: w.storm("g1.link11", "replay", 21200, 2460),
        lambda w: w.storm("g0.link2", "replay", 4, 600),
        lambda w: w.xid("g1", 31),
        lambda w: w.storm("g0.link2", "replay", 4, 600),
        lambda w: w.set("g0.row_remap_pending", 1),
    ]
    for number, happening in enumerate(happenings):
        hook(site, "health_check")
        hook(site, "prolog", 8812 + number)
        with site.edit() as world:
            happening(world)
            world.advance(300)
        hook(site, "health_check")
        hook(site, "epilog", 8812 + number)
    with site.edit() as world:
        world.lose("g0")
        world.pci("g0", "ok")  # no witness: only a second look confirms it
    hook(site, "prolog", 9000, gpus="0")
    with site.edit() as world:
        world.restore("g0")
        world.advance(300)
    hook(site, "health_check")
    return site


def test_the_policy_in_force_changes_nothing_and_reproduces_everything(month: Site) -> None:
    report = simulated(month)
    with month.ledger() as ledger:
        stored = ledger.recent_runs(100)
    assert report.runs == report.judged == len(stored) == 22
    assert report.differences == ()
    assert (report.same_hash, report.reproduced) == (22, 22), "all come out as they were recorded"
    assert any(run.decision["proposals"] for run in stored), "and something was proposed"
    assert (report.skipped, report.unconfirmed, report.without_start) == ({}, 0, 0)


def test_what_another_policy_would_have_done(month: Site) -> None:
    with_new = of_text(month, narrow={"enabled": True}, **ENFORCED)
    found = [d for d in simulated(month, with_new).differences if d.finding.code == "NVL-STORM"]
    assert {(d.hook, d.job_id, d.was, d.now) for d in found} == {
        ("health_check", "", "narrow (observed)", "narrow"), ("epilog", "8812", "narrow (observed)", "narrow"),
    }  # fmt: skip
    evidence = found[0].finding.evidence
    assert (evidence.amount, evidence.rule, found[0].finding.entity.rpartition("/")[2]) == (21200, "nvl_storm", "link11")


def test_without_narrowing_the_same_fault_drains(month: Site) -> None:
    found = [d for d in simulated(month, of_text(month, **ENFORCED)).differences if d.finding.code == "NVL-STORM"]
    assert {(d.was, d.now) for d in found} == {("narrow (observed)", "drain")}


def test_a_rule_that_asks_no_more(month: Site) -> None:
    off = of_text(month, narrow={"enabled": True}, rules={"gpu_lost": {"mode": "off"}})
    found = [d for d in simulated(month, off).differences if d.finding.code == "GPU-LOST"]
    assert [(d.hook, d.job_id, d.was, d.now) for d in found] == [("prolog", "9000", "drain", sim.NOTHING)]


def test_a_second_look_that_was_stored_confirms_again(month: Site) -> None:
    """The lost GPU was found by two looks in one prolog, of which only the second is kept."""
    with month.ledger() as ledger:
        run = next(r for r in ledger.recent_runs(100) if r.job_id == "9000")
        snapshot = ledger.snapshot_of(run.id)
    assert run.given["first_look"] is not None
    assert snapshot is not None
    assert run.given["first_look"][0] < snapshot.wall_ns


def test_a_second_look_that_nobody_took_is_said(month: Site) -> None:
    """By default a down link is looked at a minute later; a policy that looks twice at once asks for what was never read."""
    twice = of_text(month, rules={"pending": {"field": "row_remap_pending", "fail": {"value_is": 1, "consecutive": 2}, "action": "drain"}})
    assert simulated(month, twice).unconfirmed > 0
    assert simulated(month).unconfirmed == 0


def test_partitions_and_models_have_their_say(month: Site) -> None:
    of_partition = of_text(month, narrow={"enabled": True}, partitions={"gpu": ENFORCED})
    assert {(d.hook, d.now) for d in simulated(month, of_partition).differences} == {("epilog", "narrow")}
    other = of_text(month, narrow={"enabled": True}, partitions={"debug": ENFORCED}, models={"NVIDIA H200": ENFORCED})
    assert simulated(month, other).differences == ()
    of_model = of_text(month, narrow={"enabled": True}, models={"NVIDIA A100*": ENFORCED})
    assert {d.now for d in simulated(month, of_model).differences} == {"narrow"}


def test_users_and_settled_events_are_those_of_then(tmp_path: Path) -> None:
    site = small_node(tmp_path)
    for number, user in enumerate((1000, 1001, 1002)):
        for name in ("prolog", "epilog"):
            places = Places(str(site.config), str(site.root / "state"), str(site.root / "run"), str(site.slurm_conf))
            run_hook(name, places, site.environment(8812 + number, "0,1", SLURM_JOB_UID=str(user)), time.monotonic(), "n1")
            if name == "prolog":
                with site.edit() as world:
                    world.advance(60)
                    world.xid("g1", 31)
    report = simulated(site)
    assert (report.reproduced, report.differences) == (6, ())
    other = of_text(site, rules={"xid_app_users": {"warn": {"xid": [31], "users": 4, "within": "7d"}}})
    assert [(d.job_id, d.was, d.now) for d in simulated(site, other).differences] == [("8814", "notify (observed)", sim.NOTHING)]


def test_what_was_learned_is_that_of_then(tmp_path: Path) -> None:
    """A drift is judged again by what was normal before it; what an administrator has overwritten since is not known any more."""
    site = small_node(tmp_path)
    for ecc in (1, 0, 0):
        with site.edit() as world:
            world.set("g1.ecc_mode", ecc)
            world.advance(300)
        hook(site, "health_check")
    assert simulated(site).reproduced == 3
    enforced = of_text(site, rules={"config_drift": {"mode": "enforce"}})
    found = [d for d in simulated(site, enforced).differences if d.finding.code == "CONFIG-DRIFT"]
    assert [(d.was, d.now, d.finding.evidence.limit) for d in found] == [("notify (observed)", "notify", 1)] * 2
    with site.ledger() as ledger:
        snapshot = ledger.recent_runs(1)[0]
        uuid = found[0].finding.entity
        ledger.accept(Lesson(snapshot.ended_ns + 1, "alice", {uuid: {"ecc_mode": 0}}))
    report = simulated(site)
    assert (report.same_hash, report.reproduced) == (3, 1), "and that is said"
    assert [(o.hook, o.codes, o.why) for o in report.otherwise] == [("health_check", ("CONFIG-DRIFT",), (sim.ACCEPTED,))] * 2
    said = site.nvhc("simulate", "--policy", str(site.config))
    assert f"CONFIG-DRIFT: {sim.ACCEPTED}" in " ".join(said.split())


def test_a_broken_policy_file_is_said_since_it_is_not_what_is_compared(tmp_path: Path) -> None:
    site = small_node(tmp_path)
    hook(site, "health_check")
    path = new_file(site)
    site.config.write_text("schema: 1\nruels: {}\n")
    said = " ".join(site.nvhc("simulate", "--policy", path).split())
    assert "in force is not what the file says" in said
    assert "line 2, key ruels" in said
    assert "the last good policy" in said


@pytest.mark.parametrize(
    ("level", "field", "why"),
    [
        (Level(poisson=Poisson(0.1, ber=1e-14)), "nvlink_crc_flit", sim.SAMPLES),
        (Level(poisson=Poisson(0.1, ber=1e-14)), "nvlink5_symbol_errors", sim.NOT_KNOWN),
        (Level(peers=Peers("below", 0.15, True)), "sm_clock", sim.SAMPLES),
        (Level(cusum=Cusum(0.1, 1.0)), "nvlink_replay", sim.MEMORY),
        (Level(increase_at_least=1, hits=2, within_s=60.0), "pcie_replay", sim.MEMORY),
        (Level(increase_at_least=1), "pcie_replay", sim.NOT_KNOWN),
    ],
)
def test_why_a_run_comes_out_otherwise(month: Site, level: Level, field: str, why: str) -> None:
    """A recorded run with one finding more than is made of it here."""
    with month.ledger() as ledger:
        stored = next(r for r in ledger.recent_runs(100) if r.hook == "health_check")
    only = Finding("SITE-RULE", "g0", "gpu", "fail", "", Evidence(field=field, rule="odd"), {})
    nothing = Judgement((), Decision("ok", (), ()), {}, False, {})
    found = sim._otherwise(stored._replace(findings=(only,)), nothing, policy(rule("odd", field, fail=level)), ())
    assert (found.run_id, found.codes, found.why) == (stored.id, ("SITE-RULE",), (why,))


def test_events_that_were_settled_stay_settled(tmp_path: Path) -> None:
    """An Xid that drained the node, and an administrator who resumed it: no later run is judged by it again."""
    site = small_node(tmp_path)
    drained = site.slurm()
    hook(site, "prolog", 8812)
    with site.edit() as world:
        world.xid("g1", 79)
        world.advance(60)
    hook(site, "epilog", 8812)
    assert "Xid 79" in drained.read_text()
    drained.unlink()
    for _look in range(3):
        with site.edit() as world:
            world.advance(300)
        hook(site, "health_check")
    with site.ledger() as ledger:
        decisions = [run.decision["proposals"] for run in ledger.recent_runs(10)]
    assert decisions[0] == []
    report = simulated(site)
    assert report.reproduced == report.judged == 5


def test_the_real_ledger_is_only_read(month: Site) -> None:
    files = {p: p.read_bytes() for p in (month.root / "state" / "n1").glob("*.json")}
    with month.ledger() as ledger:
        before = (ledger.recent_runs(100), ledger.protective(), ledger.rates(), ledger.fold_memory(lambda m, look: ((m, look), m, look)))
    calls = month.calls()
    simulated(month, of_text(month, **ENFORCED))
    with month.ledger() as ledger:
        after = (ledger.recent_runs(100), ledger.protective(), ledger.rates(), ledger.fold_memory(lambda m, look: ((m, look), m, look)))
    assert before == after
    assert files == {p: p.read_bytes() for p in files}
    assert month.calls() == calls, "Slurm is not asked"


# --- what can not be judged again ----------------------------------------------------


def rewrite(site: Site, statement: str) -> None:
    import sqlite3

    conn = sqlite3.connect(str(site.root / "state" / "n1" / "ledger.sqlite3"), isolation_level=None)
    conn.execute(statement)
    conn.close()


def small(tmp_path: Path) -> Site:
    site = small_node(tmp_path)
    hook(site, "prolog", 8812)
    with site.edit() as world:
        world.storm("g1.link11", "replay", 21200, 2460)
    hook(site, "epilog", 8812)
    return site


def test_runs_without_a_snapshot_are_counted(tmp_path: Path) -> None:
    site = small(tmp_path)
    rewrite(site, "UPDATE runs SET snapshot = NULL WHERE hook = 'epilog'")
    report = simulated(site)
    assert (report.runs, report.judged, report.skipped) == (2, 1, {"no snapshot of it can be read": 1})


def test_runs_of_an_earlier_version_are_counted(tmp_path: Path) -> None:
    site = small(tmp_path)
    with site.ledger() as ledger:
        for run in ledger.recent_runs(10):
            ledger.record_run(run._replace(id=0, given={}, snapshot=ledger.snapshot_of(run.id)))
    rewrite(site, "DELETE FROM runs WHERE id <= 2")
    report = simulated(site)
    assert report.judged == 0
    assert report.skipped == {"recorded by an earlier version, without what judge was told": 2}
    assert site.command("simulate", "--policy", str(site.config)).returncode == 3


def test_a_job_whose_start_is_not_kept_is_said(tmp_path: Path) -> None:
    site = small(tmp_path)
    rewrite(site, "DELETE FROM runs WHERE hook = 'prolog'")
    report = simulated(site, of_text(site, **ENFORCED))
    assert (report.judged, report.without_start, report.differences) == (1, 1, ())


def test_only_runs_since(tmp_path: Path) -> None:
    site = small(tmp_path)
    with site.ledger() as ledger:
        last = ledger.recent_runs(1)[0]
    assert simulated(site, since_ns=last.ended_ns).runs == 1
    # The job's start lies before, and is found all the same.
    assert len(simulated(site, of_text(site, **ENFORCED), since_ns=last.ended_ns).differences) == 1


# --- the command ----------------------------------------------------------------------


def test_the_command_tells_differences_and_exits_1(month: Site) -> None:
    path = new_file(month, **ENFORCED)
    text = month.nvhc("simulate", "--policy", path, code=1)
    for part in ("22 of 22 runs judged", "runs a second", "narrow (observed)", "NVL-STORM", "gpu1", "link11 replay +21200 in", "8812",
                 "all come out as they were recorded", "engine's samples are not stored"):  # fmt: skip
        assert part in " ".join(text.split()), part
    found = month.nvhc_json("simulate", "--policy", path, code=1)
    (group,) = [g for g in found["differences"] if g["finding"]["code"] == "NVL-STORM"]
    assert (group["was"], group["now"], group["runs"], group["jobs"]) == ("narrow (observed)", "narrow", 2, ["8812"])
    assert len([e for e in found["each"] if e["code"] == "NVL-STORM"]) == 2


def test_the_command_with_the_policy_in_force_exits_0(month: Site) -> None:
    assert "nothing would have been asked for otherwise" in month.nvhc("simulate", "--policy", str(month.config))


def test_since_is_counted_from_the_newest_run(month: Site) -> None:
    path = new_file(month, **ENFORCED)
    assert "of runs are kept" in month.nvhc("simulate", "--policy", path, "--since", "30d", code=1)
    assert "NVL-STORM" not in month.nvhc("simulate", "--policy", path, "--since", "10m")


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        ("schema: 1\nruels: {}\n", (), "line 2, key ruels: unknown key ruels (did you mean rules?)"),
        (None, (), "does not exist"),
        ("schema: 1\n", ("--since", "soon"), "--since"),
        ("schema: 1\n", ("--since", ""), "--since"),
    ],
)
def test_bad_words_are_told_in_one_line(month: Site, tmp_path: Path, text: str | None, words: tuple[str, ...], said: str) -> None:
    path = tmp_path / "new.yaml"
    if text is not None:
        path.write_text(text)
    done = month.command("simulate", "--policy", str(path), *words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


# --- whatever happens, the same policy makes the same of it --------------------------------


def happen(world: World, rng: random.Random) -> None:
    gpu, link = f"g{rng.randrange(2)}", f"link{rng.randrange(12)}"
    rng.choice(
        [
            lambda: world.storm(f"{gpu}.{link}", rng.choice(["replay", "recovery", "crc_flit"]), rng.choice([1, 3, 500]), 60),
            lambda: world.xid(gpu, rng.choice([13, 31, 48, 63, 74, 79, 94, 999])),
            lambda: world.set(f"{gpu}.{link}.state", rng.choice(["down", "up"])),
            lambda: world.set(f"{gpu}.row_remap_pending", rng.choice([0, 1])),
            lambda: world.set(f"{gpu}.ecc_dbe_volatile", rng.choice(["blank", 0])),
            lambda: world.set(f"{gpu}.ecc_mode", rng.choice([0, 1])),
            lambda: world.gpu_reset(gpu),
            lambda: world.driver_reload(),
            lambda: world.reboot(),
            lambda: world.lose(gpu, engine_lists=rng.random() < 0.5),
            lambda: world.restore("*"),
            lambda: world.engine(rng.choice(["ok", "ok", "ok", "absent", "empty"])),
            lambda: None,
        ]
    )()
    world.advance(rng.choice([1, 30, 300, 3600, 2 * DAY_S]))


@pytest.mark.parametrize("seed", range(4))
def test_random_histories_are_reproduced(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    site = small_node(tmp_path, record={"keep": "3650d"})
    site.slurm()
    running: dict[int, str] = {}
    for step in range(20):
        with site.edit() as world:
            happen(world, rng)
        kind = rng.choice(["health_check", "prolog", "epilog"])
        if kind == "prolog":
            running[step] = ",".join(str(n) for n in sorted(rng.sample(range(2), rng.randint(1, 2))))
            hook(site, "prolog", step + 1, running[step])
        elif kind == "epilog" and running:
            number = rng.choice(sorted(running))
            hook(site, "epilog", number + 1, running.pop(number))
        else:
            hook(site, "health_check")
    report = simulated(site)
    assert report.differences == ()
    assert report.judged == report.runs > 0
    assert report.reproduced == report.same_hash == report.judged


def test_the_scratch_ledgers_know_nothing_of_the_real_one(month: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each side folds its own memory: two policies that differ do not disturb one another."""
    seen: list[str] = []
    opened = Ledger.open.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Ledger], directory: str, timeout_s: float) -> Ledger:
        seen.append(directory)
        return opened(cls, directory, timeout_s)

    monkeypatch.setattr(Ledger, "open", classmethod(noted))
    with month.ledger() as ledger:
        seen.clear()
        sim.simulate(ledger, "n1", policy_of(month), of_text(month, **ENFORCED), 0)
    assert [Path(directory).name for directory in seen] == ["in_force", "new"]
    assert not any(Path(directory).exists() for directory in seen), "and nothing is left behind"


def test_troubles_of_then_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrong with our own means is no part of the snapshot, and a policy may drain for it."""
    site = small_node(tmp_path)
    from slurm_nvhc import pipeline

    def troubled(*args: Any, **more: Any) -> Context:
        context = prepared(*args, **more)
        return context._replace(troubles=(Trouble("MON-READER", "reader", "told by the test"),))

    prepared = pipeline.prepare
    monkeypatch.setattr(pipeline, "prepare", troubled)
    hook(site, "health_check")
    found = simulated(site, of_text(site, monitor={"action": "drain"})).differences
    assert [(d.finding.code, d.was, d.now) for d in found] == [("MON-READER", sim.NOTHING, "drain")]


def test_starts_of_jobs_whose_end_never_comes_are_not_all_kept_in_memory() -> None:
    class Stored:
        def snapshot_of(self, run_id: int) -> str:
            return f"read {run_id}"

    starts: Any = sim._Starts(Stored())  # type: ignore[arg-type]
    look = Snapshot("n1", "sim", "4.6.0", "boot-1", 0, 0, gpus={})
    for n in range(100):
        starts.passed(Run("prolog", 0, 0, "ok", id=n), look)
    assert len(starts._prologs) == sim.KEPT_PROLOGS
    assert starts.before(Run("epilog", 0, 0, "ok", before_run=99)) is look
    assert starts.before(Run("epilog", 0, 0, "ok", before_run=3)) == "read 3"
