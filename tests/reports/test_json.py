"""JSON for tools: versioned, and null where nothing was measured."""

from __future__ import annotations

import io
import json

from perfkit.diagnosis import Diagnosis
from perfkit.reports.json import write_json


def test_a_diagnosis_in_json_is_versioned_and_null_where_unmeasured(diagnosis: Diagnosis) -> None:
    file = io.StringIO()

    write_json(diagnosis, file)

    answer = json.loads(file.getvalue())
    assert answer["schema"] == 3
    assert [finding["cost_ns"] for finding in answer["findings"]] == [45_000_000, 12_000_000, None]
    assert answer["figures"]["syncs_per_step"] is None
    assert Diagnosis.from_json(file.getvalue()).to_json() == diagnosis.to_json()
