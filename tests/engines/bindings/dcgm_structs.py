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
    if name in ("dcgmActionValidate_v2", "dcgmStopDiagnostic"):
        import stub_diag

        return getattr(stub_diag, name)
    if name not in ("dcgmHostengineVersionInfo", "dcgmGetGpuStatus"):
        raise DCGMError(-20)
    return getattr(stub_engine, name)


# -- diagnostics: questions 7 to 10 and answers 8 to 12, after the field lists of DCGM 3.1, 3.3, 4.0 and 4.6 ------------

DCGM_MAX_TEST_NAMES, DCGM_MAX_TEST_NAMES_LEN = 20, 50
DCGM_MAX_TEST_PARMS, DCGM_MAX_TEST_PARMS_LEN, DCGM_MAX_TEST_PARMS_LEN_V2 = 100, 100, 1050
_UINT, _LIST, _PATH = c.c_uint, c.c_char * 50, c.c_char * 128


def _question(list_name, parameter_len, tail, limit=("currentIterations", "totalIterations", "timeoutSeconds")):
    return [
        ("version", _UINT),
        ("flags", _UINT),
        ("debugLevel", _UINT),
        ("groupId", c.c_void_p),
        ("validate", _UINT),
        ("testNames", c.c_char * DCGM_MAX_TEST_NAMES_LEN * DCGM_MAX_TEST_NAMES),
        ("testParms", c.c_char * parameter_len * DCGM_MAX_TEST_PARMS),
        ("fakeGpuList", _LIST),
        *list_name,
        ("debugLogFile", _PATH),
        ("statsPath", _PATH),
        ("configFileContents", c.c_char * 10000),
        ("mask", _LIST),
        ("pluginPath", _PATH),
        *((name, _UINT) for name in limit),
        ("_unusedBuf", _PATH),
        ("failCheckInterval", _UINT),
        *tail,
    ]


class c_dcgmRunDiag_v7(c.Structure):
    # As NVIDIA's bindings up to 3.2 have it: no time limit yet, and rows and columns of the names confused.
    _fields_ = [
        (name, c.c_char * DCGM_MAX_TEST_NAMES * DCGM_MAX_TEST_NAMES_LEN) if name == "testNames" else (name, kind)
        for name, kind in _question([("gpuList", _LIST)], DCGM_MAX_TEST_PARMS_LEN, [], ("_unusedInt1", "_unusedInt2", "_unusedInt3"))
    ]


class c_dcgmRunDiag_v8(c.Structure):
    _fields_ = _question([("gpuList", _LIST)], DCGM_MAX_TEST_PARMS_LEN_V2, [("expectedNumEntities", _LIST)])


_TAIL_9 = [("expectedNumEntities", _LIST), ("entityIds", c.c_char * 2048), ("watchFrequency", _UINT)]


class c_dcgmRunDiag_v9(c.Structure):
    _fields_ = _question([], DCGM_MAX_TEST_PARMS_LEN_V2, _TAIL_9)


class c_dcgmRunDiag_v10(c.Structure):
    _fields_ = _question([], DCGM_MAX_TEST_PARMS_LEN_V2, [*_TAIL_9, ("ignoreErrorCodes", c.c_char * 1024)])


class c_dcgmDiagErrorDetail_t(c.Structure):
    _fields_ = [("msg", c.c_char * 1024), ("code", _UINT)]


class c_dcgmDiagErrorDetail_v2(c.Structure):
    _fields_ = [("msg", c.c_char * 1024), ("gpuId", c.c_int), ("code", _UINT), ("category", _UINT), ("severity", _UINT)]


class c_dcgmDiagTestResult_v2(c.Structure):
    _fields_ = [("result", _UINT), ("error", c_dcgmDiagErrorDetail_t), ("info", c.c_char * 1024)]


class c_dcgmDiagTestResult_v3(c.Structure):
    _fields_ = [("result", _UINT), ("error", c_dcgmDiagErrorDetail_v2 * 5), ("info", c.c_char * 1024)]


class c_dcgmDiagResponsePerGpu_v4(c.Structure):
    _fields_ = [("gpuId", _UINT), ("hwDiagnosticReturn", _UINT), ("results", c_dcgmDiagTestResult_v2 * 13)]


class c_dcgmDiagResponsePerGpu_v5(c.Structure):
    _fields_ = [("gpuId", _UINT), ("hwDiagnosticReturn", _UINT), ("results", c_dcgmDiagTestResult_v3 * 13)]


def _answer(of_gpu, result, error, tail):
    return [
        ("version", _UINT),
        ("gpuCount", _UINT),
        ("levelOneTestCount", _UINT),
        ("levelOneResults", result * 16),
        ("perGpuResponses", of_gpu * DCGM_MAX_NUM_DEVICES),
        ("systemError", error),
        *tail,
    ]


class c_dcgmDiagResponse_v8(c.Structure):
    _fields_ = _answer(c_dcgmDiagResponsePerGpu_v4, c_dcgmDiagTestResult_v2, c_dcgmDiagErrorDetail_t, [("_unused", c.c_char * 1024)])


class c_dcgmDiagResponse_v10(c.Structure):
    _fields_ = _answer(
        c_dcgmDiagResponsePerGpu_v5,
        c_dcgmDiagTestResult_v3,
        c_dcgmDiagErrorDetail_v2,
        [("dcgmVersion", c.c_char * 12), ("dcgmDriverVersion", c.c_char * DCGM_MAX_STR_LENGTH)],
    )


class c_dcgmDiagInfo_v1(c.Structure):
    _fields_ = [("entity", c_dcgmGroupEntityPair_t), ("msg", c.c_char * 1024), ("testId", _UINT)]


class c_dcgmDiagError_v1(c.Structure):
    _fields_ = [
        ("entity", c_dcgmGroupEntityPair_t),
        ("code", _UINT),
        ("category", _UINT),
        ("severity", _UINT),
        ("msg", c.c_char * 1024),
        ("testId", _UINT),
    ]


class c_dcgmDiagEntityResult_v1(c.Structure):
    _fields_ = [("entity", c_dcgmGroupEntityPair_t), ("result", c.c_int), ("testId", _UINT)]


class c_dcgmDiagEntity_v1(c.Structure):
    _fields_ = [("entity", c_dcgmGroupEntityPair_t), ("serialNum", c.c_char * 256), ("skuDeviceId", c.c_char * 256)]


def _test(infos):
    return [
        ("name", c.c_char * 32),
        ("pluginName", c.c_char * 32),
        ("result", _UINT),
        ("numErrors", c.c_ubyte),
        ("numInfo", c.c_ubyte),
        ("categoryIndex", c.c_ubyte),
        ("_unused", c.c_ubyte),
        ("numResults", c.c_ushort),
        ("errorIndices", c.c_ubyte * 32),
        ("infoIndices", c.c_ubyte * infos),
        ("resultIndices", c.c_ushort * 1024),
    ]


class c_dcgmDiagTestRun_v1(c.Structure):
    _fields_ = _test(16)


class c_dcgmDiagTestRun_v2(c.Structure):
    _fields_ = _test(128)


def _walked(test, infos):
    return [
        ("version", _UINT),
        ("numTests", c.c_ubyte),
        ("numErrors", c.c_ubyte),
        ("numInfo", c.c_ubyte),
        ("numCategories", c.c_ubyte),
        ("numEntities", c.c_ushort),
        ("numResults", c.c_ushort),
        ("tests", test * 20),
        ("entities", c_dcgmDiagEntity_v1 * 1024),
        ("errors", c_dcgmDiagError_v1 * 32),
        ("info", c_dcgmDiagInfo_v1 * infos),
        ("results", c_dcgmDiagEntityResult_v1 * 20480),
        ("categories", (c.c_char * 20) * 5),
        ("dcgmVersion", c.c_char * 12),
        ("dcgmDriverVersion", c.c_char * DCGM_MAX_STR_LENGTH),
    ]


class c_dcgmDiagResponse_v11(c.Structure):
    _fields_ = _walked(c_dcgmDiagTestRun_v1, 16)


class c_dcgmDiagResponse_v12(c.Structure):
    _fields_ = _walked(c_dcgmDiagTestRun_v2, 128)


for _kind, _numbers in (("RunDiag", (7, 8, 9, 10)), ("DiagResponse", (8, 10, 11, 12))):
    for _number in _numbers:
        globals()[f"dcgm{_kind}_version{_number}"] = c.sizeof(globals()[f"c_dcgm{_kind}_v{_number}"]) | _number << 24
