"""Where the node's state is lost at a reboot no GPU is excluded: the whole node is drained instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_nvhc.scenario import load, run

STORM = """\
schema: 1
name: storm
policy:
  defaults: false
  record: {record}
  narrow: {{enabled: true}}
  rules: {{replay: {{finding: NVL-STORM, field: nvlink_replay, fail: {{increase_above: 100}}, action: narrow}}}}
steps:
  - prolog: {{job: 1, gpus: [3]}}
  - add: {{g3.link11.nvlink_replay: 5000}}
  - epilog: {{job: 1}}
expect: [{{action: {action}}}]
"""


@pytest.mark.parametrize(("record", "action"), [("{durable: true}", "exclude"), ("{durable: false}", "drain"), ("{keep: 9d}", "exclude")])
def test_a_gpu_is_taken_out_alone_only_where_that_is_remembered(record: str, action: str, tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    report = run.run(load.parse(STORM.format(record=record, action=action), record), str(tmp_path))
    assert report.ok, [f"{c.where}: expected {c.wanted}, seen {c.seen}" for c in report.checks if not c.ok]
