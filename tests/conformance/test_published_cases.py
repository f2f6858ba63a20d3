import pytest

from conformance.runner import arrays, calibrant_adapter, load_cases, netcal_adapter, run_case, torchmetrics_adapter

CASES = load_cases()


@pytest.mark.filterwarnings("ignore::calibrant.calibrators.base.CalibrationWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_published_case_holds(case):
    outcome = run_case(case, calibrant_adapter())
    assert outcome.verdict == "pass", outcome.detail
    # A refusal of ours also says what is wrong.
    assert case["expect"].get("error", "") in outcome.detail


def test_published_cases_have_unique_names_and_a_verdict():
    assert len({case["id"] for case in CASES}) == len(CASES)
    for case in CASES:
        probs, labels = arrays(case)
        assert len({"error", "value", "above"} & set(case["expect"])) == 1
        assert len(probs) == len(labels)


def test_published_cases_catch_the_known_faults_of_peers():
    failed = {c["id"] for c in CASES if run_case(c, torchmetrics_adapter()).verdict == "fail"}
    assert {"binary-confidence-one-in-last-bin", "half-precision-many-samples"} <= failed
    raised = run_case(next(c for c in CASES if c["id"] == "ten-classes-two-labels"), netcal_adapter())
    assert raised.verdict == "fail"
