"""The simulated node's diagnostics: what they will find, how they will behave, and the one that runs. State and its file.

What a card's hardware test says stays with the card, through resets and reboots: it is broken. What software finds follows
from the readings (diag_output.py).
"""

from __future__ import annotations

import difflib
from typing import Any, Final, Mapping, NamedTuple, Optional, Sequence

from slurm_nvhc.catalog import diags
from slurm_nvhc.errors import InputError
from slurm_nvhc.model import diag, entity
from slurm_nvhc.sense.sim import arguments

NS: Final = 1_000_000_000
# ok; never ends, but stops when it is asked to; does not even stop; no nvvs is installed; nvvs dies at its end;
# running: somebody else's runs now
BEHAVIOURS: Final = ("ok", "hangs", "stubborn", "absent", "crashes", "running")
RESULTS: Final = (diag.PASS, diag.WARN, diag.FAIL, diag.SKIP, diag.NOT_RUN)
# Seconds that a test takes on a node with nothing wrong; 2 min for level 2, as is usual.
_USUAL: Final[Mapping[str, float]] = {
    "software": 5.0, "memory": 30.0, "pcie": 85.0, "diagnostic": 190.0, "nvbandwidth": 60.0, "memory_bandwidth": 30.0,
    "targeted_stress": 40.0, "targeted_power": 130.0, "memtest": 620.0, "pulse_test": 620.0, "sm_stress": 40.0, "context_create": 10.0,
}  # fmt: skip
# Packages of their own, which the simulated node does not have: these tests are skipped. There are no CPUs to test either.
NOT_INSTALLED: Final = ("eud", "nccl_tests")
_SINCE_4: Final = ("nvbandwidth", "nccl_tests")


class Said(NamedTuple):
    """What one test says of one part: a GPU's UUID, or "node". error: DCGM_FR_ number; text, severity: '' = as the number says."""

    test: str
    where: str
    result: str
    error: Optional[int] = None
    text: str = ""
    severity: str = ""


class Plan(NamedTuple):
    """How diagnostics go from now on.

    seconds: each takes this long, None: as its tests usually do
    output, rc: dcgmi's text and exit status, played instead of an answer of the node's own
    real_seconds: it takes this much real time too, so that others can meet it while it runs
    """

    behaviour: str = "ok"
    seconds: Optional[float] = None
    output: Optional[str] = None
    rc: int = 0
    real_seconds: float = 0.0


class Running(NamedTuple):
    """One that runs in the engine. until_ns: then the engine ends it by itself, None: never. uuids: of the GPUs, () = not told."""

    since_ns: int
    until_ns: Optional[int]
    uuids: tuple[str, ...] = ()
    stubborn: bool = False


class Diags:
    """running: as it was begun; ``now`` says whether it still does."""

    def __init__(self) -> None:
        self.said: list[Said] = []
        self.plan = Plan()
        self.running: Optional[Running] = None

    def now(self, wall_ns: int) -> Optional[Running]:
        """The one that runs at this moment."""
        running = self.running
        return running if running is not None and (running.until_ns is None or wall_ns < running.until_ns) else None

    def says(self, test: str, where: str) -> Optional[Said]:
        return next((s for s in self.said if (s.test, s.where) == (test, where)), None)

    def say(self, said: Said) -> None:
        """From now on; a pass is what a test says that was not told otherwise. Raises InputError."""
        checked = _checked(said)
        self.said = [s for s in self.said if (s.test, s.where) != (checked.test, checked.where)]
        if checked.result != diag.PASS:
            self.said.append(checked)

    def take(self, plan: Plan, wall_ns: int) -> None:
        """From now on; what runs has ended. Raises InputError."""
        _check_plan(plan)
        self.running = None
        if plan.behaviour == "running":
            until = None if plan.seconds is None else wall_ns + int(plan.seconds * NS)
            self.running, plan = Running(wall_ns, until), Plan()
        self.plan = plan

    def to_json(self) -> dict[str, Any]:
        running = None if self.running is None else self.running._asdict()
        return {"said": [list(s) for s in self.said], "plan": self.plan._asdict(), "running": running}


def from_json(raw: Any) -> Diags:
    """KeyError, TypeError or ValueError for what is none."""
    out = Diags()
    try:
        for row in raw["said"]:
            out.say(Said(*row))
        out.plan = Plan(**raw["plan"])
        _check_plan(out.plan)
    except InputError as exc:
        raise ValueError(str(exc)) from exc
    if raw["running"] is not None:
        since_ns, until_ns, uuids, stubborn = (raw["running"][name] for name in Running._fields)
        out.running = Running(int(since_ns), None if until_ns is None else int(until_ns), tuple(map(str, uuids)), bool(stubborn))
    return out


def tests_of(asked: Sequence[str], version: str) -> tuple[str, ...]:
    """The tests behind a level or names, in the order of the catalogue; those of a later engine, and of CPUs, are not there."""
    level = int(asked[0]) if asked and asked[0] in diags.LEVELS else 0
    named = {diags.name(t) for t in asked}
    old = version.startswith("3.")
    return tuple(
        t.name
        for t in diags.TESTS
        if (t.name in named or (level and t.level is not None and t.level <= level))
        and t.name != "cpu_eud"
        and not (old and t.name in _SINCE_4)
    )


def usual_s(tests: Sequence[str]) -> float:
    return sum(_USUAL.get(t, 0.0) for t in tests)


def _checked(said: Said) -> Said:
    where, test = "diag_result", diags.name(said.test) if isinstance(said.test, str) else ""
    if test not in diags.BY_NAME:
        near = difflib.get_close_matches(test, list(diags.BY_NAME), n=1)
        hint = f"did you mean {near[0]}?" if near else "known: " + ", ".join(diags.BY_NAME)
        raise InputError(where, "key test", f"{str(said.test)[:40]!r} is no test of DCGM's", hint)
    if said.result not in RESULTS:
        raise InputError(where, "key result", f"{str(said.result)[:40]!r} is not known", "known: " + ", ".join(RESULTS))
    if said.error is not None and (isinstance(said.error, bool) or not isinstance(said.error, int) or not 0 <= said.error < 10_000):
        raise InputError(where, "key error", f"{str(said.error)[:40]} is not a DCGM_FR_ number")
    if said.severity and said.severity not in diags.SEVERITIES.values():
        known = "known: " + ", ".join(diags.SEVERITIES.values())
        raise InputError(where, "key severity", f"{str(said.severity)[:40]!r} is not known", known)
    if not isinstance(said.text, str) or not isinstance(said.where, str):
        raise InputError(where, "key text", "must be text")
    if said.where != entity.NODE and not said.where.startswith("GPU-"):
        raise InputError(where, "key gpu", f"{said.where[:40]!r} is not a GPU")
    return said._replace(test=test)


def _check_plan(plan: Plan) -> None:
    where = "diag_plan"
    if plan.behaviour not in BEHAVIOURS:
        raise InputError(where, "key behaviour", f"{str(plan.behaviour)[:40]!r} is not known", "known: " + ", ".join(BEHAVIOURS))
    if plan.seconds is not None:
        arguments.seconds(f"{where}: key seconds", plan.seconds)
    if arguments.seconds(f"{where}: key real_seconds", plan.real_seconds) > 600:
        raise InputError(where, "key real_seconds", "is more than ten minutes of real time")
    if plan.output is not None and not isinstance(plan.output, str):
        raise InputError(where, "key output", "must be text, as dcgmi would print it")
    if isinstance(plan.rc, bool) or not isinstance(plan.rc, int) or not 0 <= plan.rc <= 255:
        raise InputError(where, "key rc", "is not an exit status, 0 to 255")
