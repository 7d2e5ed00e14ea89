"""Stand-in for NVIDIA's module of this name: the structures and names that the backend uses.

Written from the documented layout of DCGM 4; tests/test_dcgm_conformance.py holds the names
against the real bindings.
"""

from __future__ import annotations

import ctypes as c

import stub_engine

DCGM_MAX_STR_LENGTH = 256
DCGM_MAX_BLOB_LENGTH = 4096
DCGM_MAX_NUM_DEVICES = 32
DCGM_MAX_NUM_SWITCHES = 12
DCGM_OPERATION_MODE_AUTO = 1


class DCGMError(Exception):
    def __init__(self, value):
        super().__init__(value)
        self.value = value

    def __str__(self):
        return f"DCGM error {self.value}"


class c_dcgmGroupEntityPair_t(c.Structure):
    _fields_ = [("entityGroupId", c.c_uint32), ("entityId", c.c_uint32)]


class _Value(c.Union):
    _fields_ = [
        ("i64", c.c_int64),
        ("dbl", c.c_double),
        ("str", c.c_char * DCGM_MAX_STR_LENGTH),
        ("blob", c.c_byte * DCGM_MAX_BLOB_LENGTH),
    ]


class c_dcgmFieldValue_v1(c.Structure):
    _fields_ = [
        ("version", c.c_uint),
        ("fieldId", c.c_ushort),
        ("fieldType", c.c_short),
        ("status", c.c_int),
        ("ts", c.c_int64),
        ("value", _Value),
    ]


class c_dcgmFieldValue_v2(c.Structure):
    _fields_ = [
        ("version", c.c_uint),
        ("entityGroupId", c.c_uint),
        ("entityId", c.c_uint),
        ("fieldId", c.c_ushort),
        ("fieldType", c.c_short),
        ("status", c.c_int),
        ("unused", c.c_uint),
        ("ts", c.c_int64),
        ("value", _Value),
    ]


class c_dcgmVersionInfo_v2(c.Structure):
    _fields_ = [("version", c.c_uint32), ("rawBuildInfoString", c.c_char * (2 * DCGM_MAX_STR_LENGTH))]


dcgmVersionInfo_version2 = c.sizeof(c_dcgmVersionInfo_v2) | (2 << 24)


class c_dcgmGroupInfo(c.Structure):
    _fields_ = [
        ("version", c.c_uint),
        ("count", c.c_uint),
        ("groupName", c.c_char * DCGM_MAX_STR_LENGTH),
        ("entityList", c_dcgmGroupEntityPair_t * 64),
    ]


class c_dcgmFieldGroupInfo(c.Structure):
    _fields_ = [
        ("version", c.c_uint32),
        ("numFieldIds", c.c_uint32),
        ("fieldGroupId", c.c_void_p),
        ("fieldGroupName", c.c_char * DCGM_MAX_STR_LENGTH),
        ("fieldIds", c.c_uint16 * 128),
    ]


class c_dcgmAllFieldGroup(c.Structure):
    _fields_ = [("version", c.c_uint32), ("numFieldGroups", c.c_uint32), ("fieldGroups", c_dcgmFieldGroupInfo * 64)]


class c_dcgmNvLinkGpuLinkStatus(c.Structure):
    _fields_ = [("entityId", c.c_uint32), ("linkState", c.c_uint32 * 36)]


class c_dcgmNvLinkNvSwitchLinkStatus(c.Structure):
    _fields_ = [("entityId", c.c_uint32), ("linkState", c.c_uint32 * 256)]


class c_dcgmNvLinkStatus(c.Structure):
    _fields_ = [
        ("version", c.c_uint32),
        ("numGpus", c.c_uint32),
        ("gpus", c_dcgmNvLinkGpuLinkStatus * DCGM_MAX_NUM_DEVICES),
        ("numNvSwitches", c.c_uint32),
        ("nvSwitches", c_dcgmNvLinkNvSwitchLinkStatus * DCGM_MAX_NUM_SWITCHES),
    ]


class _Path(c.Structure):
    _fields_ = [("gpuId", c.c_uint32), ("path", c.c_uint32), ("localNvLinkIds", c.c_uint32)]


class c_dcgmDeviceTopology_v1(c.Structure):
    _fields_ = [("version", c.c_uint32), ("numGpus", c.c_uint32), ("gpuPaths", _Path * DCGM_MAX_NUM_DEVICES)]


class _Error(c.Structure):
    _fields_ = [("msg", c.c_char * 1024), ("code", c.c_uint)]


class _Incident(c.Structure):
    _fields_ = [("system", c.c_uint), ("health", c.c_uint32), ("error", _Error), ("entityInfo", c_dcgmGroupEntityPair_t)]


class c_dcgmHealthResponse(c.Structure):
    _fields_ = [
        ("version", c.c_uint32),
        ("overallHealth", c.c_uint32),
        ("incidentCount", c.c_uint32),
        ("incidents", _Incident * 1024),
    ]


def _dcgmInit(libDcgmPath=None):
    stub_engine.reach("library")


def _dcgmCheckReturn(ret):
    if ret != 0:
        raise DCGMError(ret)
    return ret


def _dcgmGetFunctionPointer(name):
    if name not in ("dcgmHostengineVersionInfo", "dcgmGetGpuStatus"):
        raise DCGMError(-20)
    return getattr(stub_engine, name)
