"""policy/compile.py: what an administrator writes -> what judge uses; every misunderstanding is named with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_nvhc.errors import InputError
from slurm_nvhc.policy import compiled
from slurm_nvhc.policy.compile import compile_policy
from slurm_nvhc.policy.compiled import Level, Policy, Rule

PACKAGED = b"""
schema: 1
rules:
  replay:
    finding: NVL-REPLAY
    field: [nvlink_replay, nvlink_replay_total]
    warn: {increase_at_least: 3}
    fail: {increase_at_least: 3, hits: 2, of_last: 5}
    action: drain
    mode: observe
models:
  "NVIDIA H200": {expect: {links: 18}, rules: {replay: {mode: enforce}}}
"""


def policy(text: str | None, node: str = "", partition: str = "", packaged: bytes = PACKAGED) -> Policy:
    document = json.loads(json.dumps(compile_policy(text, "p.yaml", packaged)))  # as a hook gets it
    return compiled.resolve(document, node, partition)


def only(rule: str) -> Rule:
    return policy(f"defaults: false\nrules:\n  r: {rule}").rules["r"]


def fail_level(level: str, field: str = "nvlink_replay") -> Level:
    return only(f"{{field: {field}, fail: {level}, action: drain}}").fail[0]


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        policy(text)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_without_a_site_file_the_packaged_policy_is_in_force() -> None:
    assert policy(None).rules["replay"].fail == (Level(increase_at_least=3.0, hits=2, of_last=5),)
    assert policy(None) == policy("schema: 1")._replace(hash=policy(None).hash)


def test_a_site_rule_is_complete_and_a_change_may_be_a_part() -> None:
    changed = policy("rules: {replay: {mode: enforce}}").rules["replay"]
    assert (changed.mode, changed.action, changed.finding) == ("enforce", "drain", "NVL-REPLAY")
    assert only("{field: 429, fail: {increase_above: 0}}") == Rule(
        "r", "SITE-RULE", "reading", ("nvlink_replay_total",), (), (Level(increase_above=0.0),), "note", "enforce",
        text=("", "increase > 0 errors"),
    )  # fmt: skip


def test_levels_are_replaced_as_a_whole() -> None:
    changed = policy("rules: {replay: {fail: {increase_above: 0}}}").rules["replay"]
    assert changed.fail == (Level(increase_above=0.0),)
    assert changed.warn == (Level(increase_at_least=3.0),)
    assert changed.text == ("increase >= 3 errors", "increase > 0 errors")
    assert policy("rules: {replay: {warn: []}}").rules["replay"].warn == ()


@pytest.mark.parametrize(
    ("level", "field", "expected"),
    [
        ("{rate_above: 8/min}", "202", Level(rate_above=8 / 60)),
        ("{rate_at_least: 100/s, min_window: 60s}", "409", Level(rate_at_least=100.0, min_window_s=60.0)),
        ("{rate_at_least: 7200 / h}", "202", Level(rate_at_least=2.0)),
        ("{share_above: 1%}", "241", Level(share_above=0.01)),
        ("{over_limit: pcie_replays, times: 10}", "202", Level(over_limit="pcie_replays", times=10.0)),
        ("{value_at_least: 63}", "390", Level(value_at_least=63.0)),
        ("{value_is: 1}", "395", Level(value_is=(1,))),
        ("{value_is: [failure, 1]}", "fabric_state", Level(value_is=(4, 1))),
        ("{value_is: down}", "nvlink_state", Level(value_is=("down",))),
        ("{value_is: [down, absent]}", "rdma_state", Level(value_is=(1, 0))),
        ("{value_is_not: 575.57.08}", "nvidia_driver", Level(value_is_not=("575.57.08",))),
        ("{bits_any: [hw_slowdown, power_brake]}", "112", Level(bits_any=0x88)),
        ("{bits_any: 0x40}", "112", Level(bits_any=0x40)),
        ("{below_field: 236}", "238", Level(below_field="pcie_max_width")),
        ("{above_field: gpu_temp_slowdown, offset: -5}", "150", Level(above_field="gpu_temp_slowdown", offset=-5.0)),
        ("{went_down: true, consecutive: 2, spacing: 60s, settle: 5m}", "nvlink_state",
         Level(went_down=True, consecutive=2, spacing_s=60.0, settle_s=300.0)),
        ("{value_is: 4, unless: {row_remap_pending: 1, 170: [0, failure]}}", "1523",
         Level(value_is=(4,), unless=(("row_remap_pending", (1,)), ("fabric_state", (0, 4))))),
        ("{increase_at_least: 1, unless: {xid: 94}}", "311", Level(increase_at_least=1.0, unless_xid=(94,))),
    ],
)  # fmt: skip
def test_levels_over_readings(level: str, field: str, expected: Level) -> None:
    assert fail_level(level, field) == expected


def test_rules_over_events_and_presence() -> None:
    events = only("{warn: {xid: other}, fail: [{xid: [79, 48, 79]}, {xid: 94, hits: 2, within: 24h}], action: drain, sticky: true}")
    assert (events.kind, events.fields, events.sticky) == ("event", (), True)
    assert events.warn == (Level(xid_other=True),)
    assert events.fail == (Level(xid=(79, 48)), Level(xid=(94,), hits=2, within_s=86400.0))
    assert only("{fail: {xid: 74, unless: {peer_xid: 79}}}").fail == (Level(xid=(74,), unless_peer_xid=(79,)),)
    assert only("{warn: {xid: 31, users: 3, within: 7d}}").warn == (Level(xid=(31,), users=3, within_s=604800.0),)
    lost = only("{warn: {lost: true}, fail: {lost: true, consecutive: 2, witness: true}}")
    assert (lost.kind, lost.fail) == ("presence", (Level(lost=True, consecutive=2, witness=True),))
    assert only("{fail: {lost: true, settle: 5m}}").fail == (Level(lost=True, settle_s=300.0),)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("{field: nvlink_replya, fail: {increase_above: 0}}", "rules.r.field: unknown field nvlink_replya (did you mean nvlink_replay?)"),
        ("{field: [429, 468], fail: {increase_above: 0}}", "key rules.r.field[1]: field 468 is nvlink_replay of link 11 alone"),
        ("{field: 1527, fail: {increase_above: 0}}", "write nvlink_replay"),
        ("{field: 230, fail: {value_is: 79}}", "write xid: in warn or fail"),
        ("{field: xid, fail: {value_is: 79}}", "write xid: in warn or fail"),
        ("{field: 1001, fail: {value_is: 79}}", "field 1001 is not in the field catalogue"),
        ("{field: '429', fail: {increase_above: 0}}", "write 429 without quotes"),
        ("{field: [429, 429], fail: {increase_above: 0}}", "is given twice"),
        ("{field: [], fail: {increase_above: 0}}", "names no field"),
        ("{field: 429}", "has neither warn nor fail"),
        ("{field: 429, fail: {}}", "key rules.r.fail: asks nothing"),
        ("{field: 429, fail: {hits: 2, of_last: 3}}", "asks nothing"),
        ("{}", "says nothing"),
        ("{fail: {increase_above: 0}}", "reads no field"),
        ("{field: 429, finding: NVL-REPLY, fail: {increase_above: 0}}", "unknown finding code NVL-REPLY (did you mean NVL-REPLAY?)"),
        ("{field: 429, finding: MON-POLICY, fail: {increase_above: 0}}", "can not be given to a rule"),
        ("{field: 429, finding: NO-DATA, fail: {increase_above: 0}}", "can not be given to a rule"),
        ("{field: gpu_temp, fail: {increase_above: 0}}", "increase_above needs a counter, gpu_temp is a gauge"),
        ("{field: [429, gpu_temp], fail: {increase_above: 0}}", "gpu_temp is a gauge"),
        ("{field: 429, fail: {went_down: true}}", "went_down is for nvlink_state only"),
        ("{field: 429, fail: {share_above: 1%}}", "share_above needs a counter of time"),
        ("{field: 429, fail: {over_limit: pcie_replays}}", "not for nvlink_replay_total"),
        ("{field: 429, fail: {bits_any: 1}}", "has no bits"),
        ("{field: nvlink_state, fail: {value_above: 1}}", "nvlink_state is a word"),
        ("{field: nvidia_driver, fail: {value_above: 575}}", "nvidia_driver is a word"),
        ("{field: nvidia_driver, fail: {value_is: 575.1}}", "write text in quotes"),
        ("{field: nvlink_state, fail: {value_is: dwon}}", "did you mean down?"),
        ("{field: nvlink_state, fail: {value_is: 1}}", "is not a link state"),
        ("{field: fabric_state, fail: {value_is: bad}}", "known: not supported"),
        ("{field: 112, fail: {bits_any: hw_thermla}}", "did you mean hw_thermal?"),
        ("{field: 112, fail: {bits_any: 0}}", "at least one bit"),
        ("{field: 238, fail: {below_field: gpu_temp}}", "can not be compared"),
        ("{field: 238, fail: {below_field: 238}}", "can not be compared"),
        ("{field: 150, fail: {above_field: nvlink_replay}}", "belongs to a link"),
        ("{field: 150, fail: {value_above: 90, only_when: {}}}", "names nothing (e.g. only_when: {gpu_processes: 0})"),
        ("{field: 150, fail: {value_above: 90, only_when: {switch_temp: 40}}}", "switch_temp belongs to a switch"),
        ("{field: 150, fail: {only_when: {gpu_processes: 0}}}", "asks nothing"),
        ("{field: switch_temp, fail: {value_above: 90, only_when: {gpu_processes: 0}}}", "only_when looks at the same part's own readings"),
        ("{field: switch_temp, fail: {value_above: 90, unless: {port_state: off}}}", "port_state belongs to a switch_port"),
        ("{field: pcie_replay, fail: {increase_at_least: 1, unless: {rdma_state: 4}}}", "unless looks at the GPU's own readings"),
        ("{fail: {xid: 79, only_when: {gpu_processes: 0}}}", "only_when looks at readings"),
        ("{field: 429, fail: {increase_above: -1}}", "must not be negative"),
        ("{field: 429, fail: {increase_at_least: 0}}", "it would always hold"),
        ("{field: 429, fail: {rate_above: 8}}", "the rate 8 has no unit (write 8/s, 8/min or 8/h)"),
        ("{field: 429, fail: {rate_above: 8/day}}", "is not a rate"),
        ("{field: 429, fail: {rate_above: -8/min}}", "must not be negative"),
        ("{field: 429, fail: {rate_above: 1e3}}", "write 1000 or 1.0e+3"),
        ("{field: 429, fail: {increase_above: 0x1F}}", "increase_above: hexadecimal is for bits_any only (write 31)"),
        ("{field: 150, fail: {value_is: [90, 0x5f]}}", "value_is[1]: hexadecimal is for bits_any only (write 95)"),
        ("{field: 0x1ad, fail: {increase_above: 0}}", "field: hexadecimal is for bits_any only (write 429)"),
        ("{field: 112, fail: {bits_any: '0x40'}}", "unknown bit 0x40 (write a mask without quotes)"),
        ("{finding: nvl-strom, field: 429, fail: {increase_above: 0}}", "unknown finding code nvl-strom (did you mean NVL-STORM?)"),
        ("{finding: QQQ, field: 429, fail: {increase_above: 0}}", "unknown finding code QQQ (docs/findings.md lists the codes)"),
        ("{field: 241, fail: {share_above: 0.1}}", "write it in per cent"),
        ("{field: 241, fail: {share_above: 120%}}", "below 100%"),
        ("{field: 429, fail: {increase_above: 0, hits: 6, of_last: 5}}", "6 hits can not be in the last 5 jobs"),
        ("{field: 429, fail: {increase_above: 0, hits: 2}}", "hits needs of_last or within"),
        ("{field: 429, fail: {increase_above: 0, of_last: 5}}", "of_last means nothing without hits"),
        ("{field: 429, fail: {increase_above: 0, hits: 2, of_last: 5, within: 1h}}", "exclude one another"),
        ("{field: 429, fail: {increase_above: 0, hits: 2, of_last: 5, consecutive: 2}}", "exclude one another"),
        ("{field: 429, fail: {increase_above: 0, consecutive: 0}}", "consecutive must be from 1 to 64"),
        ("{field: 429, fail: {increase_above: 0, spacing: 60s}}", "spacing means nothing without consecutive"),
        ("{field: 429, fail: {increase_above: 0, times: 3}}", "times means nothing without over_limit"),
        ("{field: 429, fail: {increase_above: 0, min_window: soon}}", "is not a duration"),
        ("{field: 395, fail: {value_is: 1, min_window: 60s}}", "min_window means nothing without a condition on growth"),
        ("{field: 395, fail: {value_is: 1, witness: true, consecutive: 2}}", "witness is for lost GPUs only"),
        ("{field: 150, fail: {value_above: 90, value_below: 80}}", "no value is above 90 and below 80"),
        ("{field: 429, fail: {xid: 79}}", "xid can not stand in a rule that reads fields"),
        ("{field: 429, fail: {lost: true}}", "lost can not stand in a rule that reads fields"),
        ("{fail: [{xid: 79}, {lost: true}]}", "lost can not stand"),
        ("{fail: {xid: 79, value_is: 1}}", "value_is needs a field"),
        ("{fail: {xid: 79, consecutive: 2}}", "consecutive does not fit Xids"),
        ("{fail: {xid: 0}}", "0 is not an Xid number"),
        ("{fail: {xid: []}}", "names no Xid"),
        ("{fail: {xid: others}}", "others is not taken here (did you mean other?)"),
        ("{fail: {xid: 31, users: 3}}", "users means nothing without within"),
        ("{fail: {lost: true, hits: 2, within: 1h}}", "does not fit lost GPUs"),
        ("{fail: {xid: 48, unless: {xid: no}}}", "xid takes Xid numbers"),
        ("{fail: {xid: 48, unless: {row_remap_pendign: 1}}}", "did you mean row_remap_pending?"),
        ("{field: 395, fail: {value_is: 1}, sticky: true}", "sticky is for Xids only"),
        ("{field: 395, fail: {value_is: 1}, after_reset: fail}", "after_reset is for counters only"),
        ("{field: 395, warn: {value_is: 1}, action: drain}", "action drain needs fail"),
        ("{field: 395, fail: {value_is: 1}, action: drian}", "drian is not one of drain, narrow, none, note, notify (did you mean drain?)"),
    ],
)  # fmt: skip
def test_rules_that_are_refused(rule: str, said: str) -> None:
    line = refused(f"schema: 1\nrules:\n  r: {rule}\n")
    assert said in line
    assert line.startswith("p.yaml, line 3, key rules.r")


def test_r77_a_misspelt_key_is_named_with_line_and_nearest_name() -> None:
    text = "rules:\n  nvlink_replay: {field: 429, fail: {increase_above: 0}}\n  nvlink_recovry:\n    feild: 439\n"
    assert refused(text) == "p.yaml, line 4, key rules.nvlink_recovry.feild: unknown key feild (did you mean field?)"
    assert "did you mean replay?" in refused("rules: {replya: {mode: observe}}")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("budgets: {prolog: 0s}", "key budgets.prolog: 0s is too small (the least is 1s)"),
        ("budgets: {prolog: -8}", "must not be negative"),
        ("budgets: {epilog: 3h}", "too large (the most is 600s)"),
        ("budgets: {health_check: 51s}", "key budgets.health_check: 51s is too large (the most is 50s)"),
        ("budgets: {registration: 51s}", "too large (the most is 50s)"),
        ("narrow: {enabled: yes}", "write true or false"),
        ("narrow: {min_gpus: 0}", "too small"),
        ("monitor: {action: narrow}", "narrow is not one of drain, none, note, notify"),
        ("slurm: {bin_dir: bin}", "is not an absolute path"),
        ("expect: {gpus: -1}", "too small"),
        ("record: {keep: 30}", "too small (the least is 1h)"),
        ("mode: off", "off is not one of enforce, observe"),
        ("schema: 2", "2 is not taken here"),
        ("nodes: {'n[1-4': {mode: observe}}", "has a bracket without its other half"),
        ("nodes: {'n[4-1]': {mode: observe}}", "runs backwards"),
        ("nodes: {'n[1-999999]': {mode: observe}}", "names more than 10000 nodes"),
        ("nodes: {'n[0-999]x[0-999]': {mode: observe}}", "names more than 10000 nodes"),
        ("nodes: {'a b': {mode: observe}}", "is not a node name"),
        ("partitions: {'a,b': {mode: observe}}", "holds no comma"),
        ("partitions: {gpu: {rules: {replay: {field: gpu_temp}}}}", "key partitions.gpu.rules.replay"),
        ("nodes: {n1: {rules: {mine: {mode: observe}}}}", "key nodes.n1.rules.mine: has neither warn nor fail"),
        ("models: {x: {narrow: {}}}", "unknown key narrow"),
    ],
)  # fmt: skip
def test_sections_that_are_refused(text: str, said: str) -> None:
    assert said in refused(text)


def test_sections_are_normalised() -> None:
    text = """
mode: observe
narrow: {enabled: true, min_gpus: 2, jobs: any}
expect: {gpus: 8, links: none}
monitor: {action: drain, after: 1h, drain_after_runs: 2}
engine: {backend: sim, world: /tmp/world.json, timeout: 500ms}
slurm: {bin_dir: /opt/slurm/bin, job_gpus: minor, timeout: 2}
drain: {extend: true, resume: own, max_length: 100}
budgets: {prolog: 5s, registration: 50s}
record: {keep: 7d, durable: true}
reread_wait: 1s
"""
    got = policy(text)
    assert got.mode == "observe"
    assert got.narrow == compiled.Narrow(True, 2, 1, "any")
    assert got.expect == compiled.Expect(8, None)
    assert got.monitor == compiled.Monitor("drain", 3, 3600.0, 2)
    assert got.engine == compiled.Engine("sim", "", "/tmp/world.json", 0.5)
    assert got.slurm == compiled.Slurm("/opt/slurm/bin", "", "minor", 2.0)
    assert got.drain == compiled.Drain("", 100, True, "own", 3)
    assert got.budgets == compiled.Budgets(5.0, 20.0, 30.0, 50.0)
    assert got.record == compiled.Record(7.0, True)
    assert got.reread_wait_s == 1.0


def test_defaults_false_leaves_nothing_packaged() -> None:
    got = policy("defaults: false")
    assert (got.rules, got.by_model, got.monitor) == ({}, (), compiled.Monitor())


OVERLAID = """
expect: {gpus: 8}
models:
  "NVIDIA H*": {rules: {replay: {action: notify}}}
partitions:
  gpu*: {rules: {replay: {mode: "off"}}, expect: {links: 4}}
  gpu-long: {mode: observe}
nodes:
  n[08-11],x1: {rules: {replay: {fail: {increase_above: 0}}}, budgets: {prolog: 4s}}
"""


def test_overlays_in_their_order() -> None:
    plain = policy(OVERLAID, "n1", "cpu")
    assert (plain.rules["replay"].mode, plain.mode, plain.budgets.prolog_s) == ("observe", "enforce", 8.0)
    both = policy(OVERLAID, "n10", "gpu-long")
    assert (both.rules["replay"].mode, both.mode, both.budgets.prolog_s, both.expect.links) == ("off", "observe", 4.0, 4)
    assert both.rules["replay"].fail == (Level(increase_above=0.0),)
    assert both.rules["replay"].text == ("increase >= 3 errors", "increase > 0 errors")


def test_partition_and_node_have_the_last_word_over_the_model() -> None:
    model = policy(OVERLAID, "n1").for_model("NVIDIA H200")
    assert (model.rules["replay"].mode, model.rules["replay"].action, model.expect) == ("enforce", "notify", compiled.Expect(8, 18))
    part = policy(OVERLAID, "n1", "gpu-a").for_model("NVIDIA H200")
    assert (part.rules["replay"].mode, part.rules["replay"].action, part.expect.links) == ("off", "notify", 4)
    assert policy(OVERLAID, "n1").for_model("NVIDIA GH200 480GB").expect.links is None


def test_what_the_site_says_at_the_top_wins_over_a_packaged_model() -> None:
    got = policy("expect: {links: 12}\nrules: {replay: {mode: observe, action: note, fail: []}}").for_model("NVIDIA H200")
    assert (got.expect.links, got.rules["replay"].mode) == (12, "observe")


def test_an_overlay_that_repeats_what_is_below_still_has_its_say() -> None:
    text = "partitions: {gpu: {rules: {replay: {mode: enforce}}}}\nnodes: {n1: {rules: {replay: {mode: observe}}}}"
    assert policy(text, "n1", "gpu").rules["replay"].mode == "observe"


@pytest.mark.parametrize(
    ("pattern", "node", "held"),
    [("n[08-11]", "n08", True), ("n[08-11]", "n8", False), ("n[10-12]", "n1", False), ("n[1,3-4]-ib", "n3-ib", True), ("n*", "n77", True),
     ("n[!a]", "nb", True), ("n1", "n11", False), ("a,b[1-2],c?", "c9", True), ("r[1-2]n[01-02]", "r2n01", True), ("N1", "n1", False)],
)  # fmt: skip
def test_node_patterns(pattern: str, node: str, held: bool) -> None:
    got = policy(yaml.safe_dump({"nodes": {pattern: {"mode": "observe"}}}), node)
    assert (got.mode == "observe") is held


def test_the_hash_names_version_and_both_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    base = policy("schema: 1").hash
    assert len(base) == 12
    assert base == policy("schema: 1").hash
    assert len({base, policy(None).hash, policy("schema: 1 ").hash, policy("schema: 1", packaged=PACKAGED + b"#").hash}) == 4
    monkeypatch.setattr("slurm_nvhc.__version__", "9.9.9")
    assert policy("schema: 1").hash != base


SCALARS: Any = st.one_of(
    st.integers(-5, 2000), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none(),
    st.sampled_from(["nvlink_replay", "429", "8/min", "1%", "60s", "other", "drain", "observe", "off", "down", "hw_thermal", ""]),
)  # fmt: skip
KEYS = sorted(
    {"schema", "defaults", "rules", "models", "partitions", "nodes", "expect", "narrow", "budgets", "replay", "r", "n[1-2]", "reread_wait"}
    | set(["field", "warn", "fail", "action", "mode", "sticky", "after_reset", "finding", "unit"])
    | {"increase_above", "rate_above", "share_above", "value_is", "value_above", "bits_any", "below_field", "offset", "went_down", "xid",
       "lost", "consecutive", "spacing", "hits", "of_last", "within", "users", "unless", "witness",
       "over_limit", "times", "gpus", "enabled"}
)  # fmt: skip
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=15
)
LEVELS = st.dictionaries(st.sampled_from(KEYS[2:]), st.one_of(SCALARS, st.lists(SCALARS, max_size=2)), max_size=4)
FIELDS = st.sampled_from([429, 150, 241, "nvlink_state", 112])
RULES = st.fixed_dictionaries({"fail": LEVELS | st.lists(LEVELS, max_size=2)}, optional={"field": FIELDS})


@settings(max_examples=300, deadline=None)
@given(st.one_of(TREES, RULES.map(lambda rule: {"rules": {"r": rule}})))
def test_whatever_compiles_can_be_used_and_all_else_is_an_input_error(tree: Any) -> None:
    try:
        policy(yaml.safe_dump(tree), "n1", "r")
    except InputError:
        pass


def test_a_model_has_one_policy_however_often_it_is_asked_for():
    """Judge keeps what it knows of a level by the level: a month judged again must not make a million of them."""
    policy = compiled.resolve(compile_policy(None, "packaged"))
    assert policy.for_model("NVIDIA H200") is policy.for_model("NVIDIA H200")
    assert policy.for_model("NVIDIA H200") is not policy.for_model("NVIDIA B200")
    other = policy._replace(by_model=())
    assert other.for_model("NVIDIA H200") is other


def test_the_policies_of_models_are_kept_for_so_many_policies_only():
    policy = compiled.resolve(compile_policy(None, "packaged"))
    for n in range(2 * compiled.MOST_POLICIES):
        other = policy._replace(hash=str(n))
        assert other.for_model("no such model") is other
    assert len(compiled._of_models) == compiled.MOST_POLICIES
    assert policy.for_model("no such model") is policy
