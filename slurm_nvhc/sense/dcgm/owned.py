"""What is ours among the engine's groups and field groups, told by name; and taking it away."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Sequence

from slurm_nvhc.sense.dcgm import status
from slurm_nvhc.sense.dcgm.connection import Connection


def groups(connection: Connection, is_ours: Callable[[str], bool]) -> Iterator[tuple[Any, Any]]:
    """(group, the engine's information about it) of each group with such a name. Raises PartFailed."""
    agent = connection.bindings.agent
    try:
        numbers = agent.dcgmGroupGetAllIds(connection.handle)
    except Exception as exc:
        raise status.failed(exc, "listing the groups") from exc
    for number in numbers:
        try:
            info = agent.dcgmGroupGetInfo(connection.handle, number)
        except Exception as exc:
            if status.code(exc) in status.HOPELESS:
                raise status.failed(exc, "listing the groups") from exc
            continue  # removed by its owner between the two calls
        if is_ours(_text(info.groupName)):
            yield number, info


def field_groups(connection: Connection, prefix: str) -> Iterator[tuple[str, Any]]:
    """(name, field group) of each whose name begins so. Raises PartFailed."""
    try:
        answer = connection.bindings.agent.dcgmFieldGroupGetAll(connection.handle)
    except Exception as exc:
        raise status.failed(exc, "listing the field groups") from exc
    for info in answer.fieldGroups[: int(answer.numFieldGroups)]:
        name = _text(info.fieldGroupName)
        if name.startswith(prefix):
            yield name, info.fieldGroupId


def take_away(connection: Connection, of_groups: Sequence[Any], of_fields: Sequence[Any], doing: str) -> bool:
    """End these watches, groups and field groups. True when there was something. Raises PartFailed, which says ``doing``."""
    agent = connection.bindings.agent

    def _quietly(call: Callable[..., Any], *arguments: Any) -> None:
        """What is not there can not be removed: no trouble. An engine that does not answer is."""
        try:
            call(*arguments)
        except Exception as exc:
            if status.code(exc) in status.HOPELESS or not status.code(exc):
                raise status.failed(exc, doing) from exc

    for group in of_groups:
        for number in of_fields:
            _quietly(agent.dcgmUnwatchFields, connection.handle, group, number)
    for number in of_fields:
        _quietly(agent.dcgmFieldGroupDestroy, connection.handle, number)
    for group in of_groups:
        _quietly(agent.dcgmGroupDestroy, connection.handle, group)
    return bool(of_groups or of_fields)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
