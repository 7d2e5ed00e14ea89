"""The one error tree.

Every error that an administrator can cause or must see is an ``NvhcError``:
it names the *thing* at fault, the *place* in it, the *problem*, and a *hint*.
``str()`` is one line; nothing here is ever shown as a traceback.
"""

from __future__ import annotations


class NvhcError(Exception):
    """A problem with something outside the code: a file, a command, an environment.

    thing:   what is at fault, e.g. the path of a policy file.
    place:   where in it, e.g. ``line 12, key rules.nvl_replay.feild``; may be empty.
    problem: what is wrong, without a trailing full stop.
    hint:    what would help; may be empty.
    """

    def __init__(self, thing: str, place: str, problem: str, hint: str = "") -> None:
        super().__init__(thing, place, problem, hint)
        self.thing = thing
        self.place = place
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        where = f"{self.thing}, {self.place}" if self.place else self.thing
        tail = f" ({self.hint})" if self.hint else ""
        return " ".join(f"{where}: {self.problem}{tail}".split())


class InputError(NvhcError):
    """Something a person wrote is wrong: policy, scenario, capture, arguments."""


class MonitorError(NvhcError):
    """Our own means failed: engine, reader, ledger, Slurm. Never a GPU's fault."""
