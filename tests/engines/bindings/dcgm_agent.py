"""Stand-in for NVIDIA's module of this name: the calls that the backend makes, with their documented signatures."""

from __future__ import annotations

import ctypes as c

import dcgm_structs as structs
import stub_engine
from dcgm_structs import DCGMError

dcgmFieldValueEntityEnumeration_f = c.CFUNCTYPE(
    c.c_int32, c.c_uint32, c.c_uint32, c.POINTER(structs.c_dcgmFieldValue_v1), c.c_int32, c.c_void_p
)


def dcgmGetAllDevices(dcgm_handle):
    stub_engine.reach("dcgmGetAllDevices")
    return stub_engine.engine().gpu_ids()


def dcgmGetNvLinkLinkStatus(dcgm_handle):
    stub_engine.reach("dcgmGetNvLinkLinkStatus")
    out = structs.c_dcgmNvLinkStatus()
    for gpu, states in stub_engine.engine().link_states().items():
        row = out.gpus[out.numGpus]
        row.entityId = gpu
        for number, state in states.items():
            row.linkState[number] = state
        out.numGpus += 1
    for switch, states in stub_engine.engine().port_states().items():
        row = out.nvSwitches[out.numNvSwitches]
        row.entityId = switch
        for number, state in states.items():
            row.linkState[number] = state
        out.numNvSwitches += 1
    return out


def dcgmGetEntityGroupEntities(dcgm_handle, entityGroup, flags):
    stub_engine.reach("dcgmGetEntityGroupEntities")
    return stub_engine.engine().switch_ids() if entityGroup == stub_engine.SWITCH else []


def dcgmGetDeviceTopology(dcgm_handle, gpuId):
    stub_engine.reach("dcgmGetDeviceTopology")
    out = structs.c_dcgmDeviceTopology_v1()
    for peer, numbers in stub_engine.engine().topology(gpuId).items():
        row = out.gpuPaths[out.numGpus]
        row.gpuId, row.localNvLinkIds = peer, sum(1 << number for number in numbers)
        out.numGpus += 1
    return out


def dcgmEntitiesGetLatestValues(dcgmHandle, entities, fieldIds, flags):
    stub_engine.reach("dcgmEntitiesGetLatestValues")
    wanted = [(e.entityGroupId, e.entityId, i) for e in entities for i in fieldIds]
    stub_engine.count("live" if flags & 1 else "cached", len(wanted))
    status = stub_engine.refusal(wanted, bool(flags & 1))
    if status:
        raise DCGMError(status)
    values = (structs.c_dcgmFieldValue_v2 * len(wanted))()
    engine = stub_engine.engine()
    # A real engine promises no order either.
    for value, (kind, entity, field) in zip(values, reversed(wanted)):
        value.entityGroupId, value.entityId = kind, entity
        _fill(value, field, *engine.value(kind, entity, field, bool(flags & 1)))
    return values


def _fill(value, field, kind, status, raw, ts):
    value.fieldId, value.status, value.ts = field, status, ts
    value.fieldType = ord(kind)
    if kind == "s":
        raw = raw if isinstance(raw, bytes) else str(raw).encode()
        c.memmove(c.addressof(value.value), raw[:255] + b"\0", min(len(raw), 255) + 1)
    elif kind == "d":
        value.value.dbl = raw
    else:
        value.value.i64 = raw


def dcgmGroupGetAllIds(dcgmHandle):
    stub_engine.reach("dcgmGroupGetAllIds")
    return [None, 1, *stub_engine.state()["groups"]]  # DCGM's own default groups are 0 and 1


def dcgmGroupGetInfo(dcgm_handle, group_id):
    out = structs.c_dcgmGroupInfo()
    if group_id in (None, 1):
        out.groupName = b"DCGM_ALL_SUPPORTED_GPUS"
        return out
    group = stub_engine.group(group_id)
    out.groupName, out.count = group["name"].encode(), len(group["entities"])
    for row, (kind, number) in zip(out.entityList, group["entities"]):
        row.entityGroupId, row.entityId = kind, number
    return out


def dcgmGroupCreate(dcgm_handle, type, groupName):
    return c.c_void_p(stub_engine.make("groups", {"name": groupName.decode(), "entities": [], "watched": {}, "health": 0}))


def dcgmGroupAddEntity(dcgm_handle, group_id, entityGroupId, entityId):
    if entityGroupId == stub_engine.SWITCH and stub_engine.options().get("refuse_switch_groups"):
        raise DCGMError(-1)
    with stub_engine.change() as state:
        state["groups"][stub_engine.key(group_id)]["entities"].append([entityGroupId, entityId])


def dcgmGroupDestroy(dcgm_handle, group_id):
    stub_engine.drop("groups", group_id)


def dcgmFieldGroupCreate(dcgm_handle, fieldIds, fieldGroupName):
    name = fieldGroupName.decode()
    if any(group["name"] == name for group in stub_engine.state()["field_groups"].values()):
        raise DCGMError(-26)
    if not all(stub_engine.known(i) for i in fieldIds):
        raise DCGMError(-1)
    return c.c_void_p(stub_engine.make("field_groups", {"name": name, "ids": list(fieldIds)}))


def dcgmFieldGroupDestroy(dcgm_handle, fieldGroupId):
    stub_engine.drop("field_groups", fieldGroupId)


def dcgmFieldGroupGetAll(dcgm_handle):
    out = structs.c_dcgmAllFieldGroup()
    for number, group in stub_engine.state()["field_groups"].items():
        row = out.fieldGroups[out.numFieldGroups]
        row.fieldGroupId, row.fieldGroupName, row.numFieldIds = int(number), group["name"].encode(), len(group["ids"])
        out.numFieldGroups += 1
    return out


def dcgmWatchFields(dcgm_handle, groupId, fieldGroupId, updateFreq, maxKeepAge, maxKeepSamples):
    stub_engine.watch(groupId, fieldGroupId, updateFreq, maxKeepAge, maxKeepSamples)


def dcgmUnwatchFields(dcgm_handle, groupId, fieldGroupId):
    with stub_engine.change() as state:
        group = state["groups"].get(stub_engine.key(groupId))
        if group is None or group["watched"].pop(stub_engine.key(fieldGroupId), None) is None:
            raise DCGMError(-16)


def dcgmUpdateAllFields(dcgm_handle, waitForUpdate):
    stub_engine.reach("dcgmUpdateAllFields")


def dcgmGetValuesSince_v2(dcgm_handle, groupId, fieldGroupId, sinceTimestamp, enumCB, userData):
    stub_engine.reach("dcgmGetValuesSince_v2")
    for (kind, entity, field), rows in stub_engine.samples(groupId, fieldGroupId, sinceTimestamp):
        values = (structs.c_dcgmFieldValue_v1 * len(rows))()
        for value, row in zip(values, rows):
            _fill(value, field, *row)
        if enumCB(kind, entity, values, len(rows), userData):
            break
    return sinceTimestamp


def dcgmHealthGet(dcgm_handle, groupId):
    return stub_engine.group(groupId)["health"]


def dcgmHealthSet_v2(dcgm_handle, groupId, systems, updateInterval, maxKeepAge):
    with stub_engine.change() as state:
        state["groups"][stub_engine.key(groupId)]["health"] = systems


def dcgmHealthCheck(dcgm_handle, groupId):
    stub_engine.reach("dcgmHealthCheck")
    out = structs.c_dcgmHealthResponse()
    if not stub_engine.group(groupId)["health"]:
        return out
    for system, code, result, (kind, entity), text in stub_engine.engine().incidents():
        row = out.incidents[out.incidentCount]
        row.system, row.health, row.error.code, row.error.msg = system, result, code, text.encode()
        row.entityInfo.entityGroupId, row.entityInfo.entityId = kind, entity
        out.incidentCount += 1
    return out
