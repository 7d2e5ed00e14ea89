"""etc/policy.yaml: the packaged policy says what its table says, and why."""

from __future__ import annotations

import pytest

from slurm_nvhc.catalog import diags
from slurm_nvhc.catalog import fields as cat
from slurm_nvhc.catalog import findings as codes
from slurm_nvhc.policy import acting, compiled
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Cusum, Level, Poisson, Rule

POLICY = compiled.resolve(compile_policy(None, ""))
RULES = POLICY.rules


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda r: r.name)
def test_every_rule_has_unit_source_and_why(rule: Rule) -> None:
    assert rule.unit
    assert rule.why
    assert rule.source.startswith(("vendor", "measured", "our judgement"))


@pytest.mark.parametrize(
    ("mode", "action", "names"),
    [
        ("enforce", "drain", ["gpu_lost", "xid_off_bus", "xid_gsp", "recovery_action", "nvl_down", "xid_nvlink", "fabric_state",
                              "fabric_error", "nvl5_recovery_failed", "xid_nvlink5_fatal", "sxid_fatal"]),
        ("observe", "drain", ["fabric_health", "fabric_configuration", "fabric_summary", "switch_reset", "switch_port_state",
                              "switch_port_fatal", "switch_port_down", "switch_lost", "rdma_down"]),
        ("enforce", "narrow", ["row_remap_failure", "sram_threshold", "memory_unrepairable", "ecc_uncorrectable", "xid_ecc",
                               "retired_pages", "diag_isolate"]),
        ("observe", "narrow", ["xid_contained", "nvl_storm", "nvl_replay", "nvl_recovery", "nvl_crc", "pcie_width",
                               "pcie_width_learned", "nvl5_recovery", "nvl5_link_down", "nvl5_ber"]),
        ("observe", "notify", ["row_remap_pending", "xid_memory", "ecc_off", "pcie_replay", "thermal_slowdown", "thermal_slowdown_now",
                               "thermal_margin", "power_brake", "power_brake_now", "xid_app_users", "xid_other", "nvl5_errors",
                               "xid_nvlink5", "fabric_recovery", "switch_port_errors", "switch_temp", "thermal_software", "power_limit",
                               "ecc_pending", "persistence_off", "rdma_flaps", "rdma_drift", "rdma_slow", "config_drift", "node_drift",
                               "switch_drift", "power_learned", "pcie_gen_learned"]),
        ("observe", "note", ["peer_clock", "peer_temp", "peer_power", "peer_throttle", "peer_link", "peer_errors",
                             "row_remapped", "ecc_corrected", "xid_app", "row_spares", "nvl5_symbol", "sxid_nonfatal", "pcie_errors",
                             "board_limits", "left_memory", "left_process", "rdma_recovery", "rdma_errors", "diag_remap_pending",
                             "diag_pages_pending", "diag_software"]),
        ("enforce", "note", ["retired_pages_pending"]),
        ("enforce", "notify", ["diag_suspect"]),
        ("off", "notify", ["gpu_temp", "memory_temp"]),
        ("off", "none", ["power_cap"]),
        ("off", "note", ["clocks_set"]),
    ],
)  # fmt: skip
def test_modes_and_actions(mode: str, action: str, names: list[str]) -> None:
    assert sorted(n for n, r in RULES.items() if (r.mode, r.action) == (mode, action)) == sorted(names)


def test_a_fault_drains_for_certain_only_where_hiding_its_gpu_would_not_help() -> None:
    """narrow: {enabled: true} is then all that a partition needs."""
    for rule in RULES.values():
        if rule.action in ("drain", "narrow"):
            assert (rule.action == "narrow") is codes.BY_CODE[rule.finding].narrowable, rule.name


def test_sections_are_the_built_in_defaults() -> None:
    assert POLICY.monitor == compiled.Monitor()
    assert POLICY.budgets == compiled.Budgets()
    assert POLICY.narrow == compiled.Narrow()
    assert POLICY.mode == "enforce"


def test_thresholds_of_the_table() -> None:
    assert RULES["gpu_lost"].fail == (Level(lost=True, consecutive=2, witness=True),)
    assert RULES["nvl_down"].fail == (Level(went_down=True, consecutive=2, spacing_s=60.0, settle_s=300.0),)
    for name in ("fabric_state", "fabric_error"):  # a fabric manager that restarts must not drain: two looks in one hook are one event
        (level,) = RULES[name].fail
        assert (level.consecutive, level.spacing_s, level.settle_s) == (2, 60.0, 600.0)
    an_error_in_six_weeks = Poisson(0.001 / 3600)
    slow_burn = Level(cusum=Cusum(0.001 / 3600, 0.5 / 3600), settle_s=600.0)
    repeated = Level(poisson=an_error_in_six_weeks, increase_at_least=3.0, hits=2, of_last=5)
    for name in ("nvl_replay", "nvl_recovery"):
        assert RULES[name].warn == (Level(poisson=an_error_in_six_weeks), Level(increase_at_least=3.0))
        assert RULES[name].fail == (repeated, slow_burn)
    assert RULES["nvl_crc"].warn == (Level(poisson=Poisson(7 / 3600, ber=1e-14, own_per_s=100.0)),)
    assert RULES["nvl_storm"].fail == (Level(rate_at_least=100 / 60, increase_at_least=100.0, settle_s=600.0),)
    assert RULES["nvl_crc"].fail == (Level(rate_at_least=100.0, min_window_s=60.0, settle_s=600.0),)
    assert RULES["retired_pages"].fail == (Level(value_at_least=63.0),)
    assert RULES["xid_contained"].fail == (Level(xid=(94,), hits=2, within_s=86400.0),)
    assert RULES["xid_nvlink"].fail == (Level(xid=(74,), unless_peer_xid=(79,)),)
    assert RULES["xid_ecc"].fail == (Level(xid=(64, 95, 140)), Level(xid=(48,), unless_xid=(94,)))
    assert RULES["recovery_action"].fail == (
        Level(value_at_least=1.0, value_is_not=(3, 4)), Level(value_is=(4,), unless=(("row_remap_pending", (1,)),))
    )  # fmt: skip
    assert RULES["thermal_slowdown"].fail == (Level(share_above=0.1, hits=2, of_last=5),)
    assert RULES["nvl5_recovery_failed"].fail == (Level(increase_at_least=1.0, settle_s=600.0),)
    assert RULES["nvl5_link_down"].fail == (Level(increase_at_least=1.0, hits=2, of_last=5, settle_s=600.0),)
    assert RULES["nvl5_ber"].fail == (
        Level(value_above=1e-12, hits=3, within_s=1500.0, settle_s=600.0),
        Level(value_above=1e-12, consecutive=3, spacing_s=60.0, settle_s=600.0),
    )
    assert RULES["sxid_fatal"].fail == (Level(sxid=(), fatal=True, unless_peer_xid=(79,)),)
    assert RULES["xid_nvlink5_fatal"].fail == (Level(xid=(144, 146, 147, 148, 149, 150), fatal=True, unless_peer_xid=(79,)),)
    for name in ("fabric_health", "fabric_configuration", "fabric_summary"):
        (level,) = RULES[name].fail
        assert (level.consecutive, level.spacing_s, level.settle_s) == (2, 60.0, 600.0)


def test_every_nvlink_5_xid_is_judged_and_145_alone_never_convicts() -> None:
    convicts = {x for rule in RULES.values() for level in rule.fail for x in level.xid or ()}
    warns = {x for level in RULES["xid_nvlink5"].warn for x in level.xid or ()}
    assert set(range(144, 151)) - convicts == {145}
    assert warns == set(range(144, 151))


def test_fatal_and_not_fatal_are_two_rules_where_the_fatal_one_is_sticky() -> None:
    """A warning in a sticky rule would be told at every prolog until the next reboot."""
    for rule in RULES.values():
        if rule.sticky and any(level.fatal is not None or level.sxid is not None for level in (*rule.warn, *rule.fail)):
            assert all(level.fatal is True for level in (*rule.warn, *rule.fail)), rule.name


def test_a_count_since_a_reset_fails_only_where_any_count_is_one_too_many() -> None:
    assert {n for n, r in RULES.items() if r.after_reset == "fail"} == {"ecc_uncorrectable"}


def test_application_xids_never_fail() -> None:
    for rule in RULES.values():
        assert not {13, 31, 43, 45} & {x for level in rule.fail for x in level.xid or ()}
        assert not any(level.xid_other for level in rule.fail)


def test_no_rule_reads_a_lifetime_count_as_a_fault_but_the_page_table() -> None:
    for rule in RULES.values():
        for level in (*rule.warn, *rule.fail):
            values = (level.value_above, level.value_at_least, level.value_is, level.value_is_not)
            if any(v is not None for v in values) and rule.name != "retired_pages":
                assert all(cat.BY_NAME[f].kind != cat.COUNTER and not cat.BY_NAME[f].sum_of for f in rule.fields), rule.name


@pytest.mark.parametrize(
    ("model", "links"),
    [("NVIDIA H100 80GB HBM3", 18), ("NVIDIA H200", 18), ("NVIDIA B200", 18), ("NVIDIA A100-SXM4-40GB", 12), ("NVIDIA A100-SXM4-80GB", 12),
     ("Tesla V100-SXM2-16GB", 6), ("Tesla V100-SXM2-32GB", 6), ("NVIDIA A100 80GB PCIe", None), ("NVIDIA H100 PCIe", None),
     ("NVIDIA GH200 480GB", None), ("NVIDIA H200 NVL", None)],
)  # fmt: skip
def test_links_expected_by_model(model: str, links: int | None) -> None:
    assert POLICY.for_model(model).expect.links == links


def test_limits_in_degrees_are_judged_only_where_boards_give_degrees() -> None:
    assert POLICY.for_model("NVIDIA A100-SXM4-80GB").rules["gpu_temp"].mode == "observe"
    assert POLICY.for_model("NVIDIA H100 80GB HBM3").rules["gpu_temp"].mode == "off"


def test_a_leaf_switch_that_reloads_is_no_fault_of_its_nodes() -> None:
    (level,) = RULES["rdma_down"].fail
    assert (level.consecutive - 1) * level.spacing_s >= 15 * 60
    assert RULES["rdma_slow"].warn == (Level(below_learned=True, only_when=(("rdma_state", (4,)),), settle_s=300.0),)


def test_codes_of_faults_have_a_rule() -> None:
    without = {c.code for c in codes.ALL if c.klass != "monitor"} - {r.finding for r in RULES.values()}
    without -= {"NO-BASELINE", "COUNTER-RESET"}  # of the node, and no faults
    without -= {"RDMA-NONE"}  # what rdma_down can not say of single ports
    without -= {"DIAG-NO-RESULT", "DIAG-PASS", "SDC-DIGEST"}  # of an active test: no reading is behind them
    assert without == {"GPU-SWAPPED", "GPU-NEW", "GPU-EXCLUDED", "SITE-RULE", "NO-DATA", "DCGM-HEALTH"}


def test_of_a_diagnostic_only_hardware_that_dcgm_says_to_isolate_for_fails() -> None:
    failing = [level for rule in RULES.values() if rule.kind == "diag" for level in rule.fail]
    (level,) = failing
    assert level.diag is not None
    assert (level.diag.status, level.diag.severities) == (("fail",), ("isolate",))
    assert set(level.diag.tests) == {t.name for t in diags.TESTS if t.active}
    (warned,) = RULES["diag_suspect"].warn
    assert warned.diag is not None
    assert set(warned.diag.tests) == {t.name for t in diags.TESTS if t.active}, "every test of hardware has a rule"


def test_no_diagnostic_is_run_unless_a_site_says_so() -> None:
    assert acting.Diagnostics() == POLICY.diagnostics
    assert (POLICY.diagnostics.prolog, POLICY.diagnostics.epilog, POLICY.diagnostics.drained) == ((), (), ())
    assert (acting.Isolate(), acting.Screen()) == (POLICY.isolate, POLICY.screen)
    assert POLICY.drain.resume_diagnostic == ()
