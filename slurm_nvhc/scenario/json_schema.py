"""``python -m slurm_nvhc.scenario.json_schema FILE``: write the JSON Schema of scenario files."""

from __future__ import annotations

import json
import sys

from slurm_nvhc.proc.files import write_atomic
from slurm_nvhc.scenario.format import json_schema

if __name__ == "__main__":
    write_atomic(sys.argv[1], json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n", 0o644, durable=False)
