"""Lab 05's checks through a `call` of somebody else, with other seeds: what a grader does."""

import pytest
from grader import assert_passes_with_any_seed, failed, over_a_wall

from utils.checks import layout_memory, layout_prediction, layout_rules
from utils.checks.layout import QUESTIONS
from utils.checks.layout_step import Case, close
from utils.theory import grid
from utils.theory.models import Transformer, hardware_flops, training_days_estimate

SEEDS = range(300, 320)


def fewest(model, batch, micro_batch, machine):
    found = layout_memory.fewest(model, batch, micro_batch, machine)
    return found and (found["tensor"], found["pipeline"], found["data"])


RIGHT = {
    "q1": [grid.coordinates, grid.rank_at, grid.groups],
    "q2": [lambda *given: layout_memory.rank_bytes(*given).total_bytes, fewest],
    "q4": [layout_prediction.volumes, layout_prediction.step_seconds],
    "q5": [lambda *given: next(iter(layout_rules.broken_rules(*given)), None)],
}


@pytest.mark.parametrize("question", RIGHT)
def test_the_course_s_own_functions_pass_with_any_seed(question):
    assert_passes_with_any_seed(QUESTIONS[question], RIGHT[question])


@pytest.mark.parametrize("answer", [None, *layout_rules.RULES])
def test_the_same_answer_to_every_layout_earns_nothing(answer):
    sub_checks = QUESTIONS["q5"]
    assert failed(sub_checks, over_a_wall([lambda *given: answer]), seed=1) == [each.name for each in sub_checks]


@pytest.mark.parametrize("rule", layout_rules.RULES)
def test_no_layout_breaks_two_rules(rule):
    for seed in SEEDS:
        asked = list(layout_rules._questions(rule, seed))
        assert {right for _, right in asked} == {rule, None}


def test_searches_meet_every_ending():
    """One GPU, several nodes, data ranks that help, and nothing that fits."""
    found = [layout_memory.fewest(*search) for search in layout_memory._searches(SEEDS[0])]
    assert None in found
    assert {layout_memory.gpus_of(best) == 1 for best in found if best} == {True, False}
    assert any(best["data"] > 1 for best in found if best)
    assert any(layout_memory.gpus_of(best) > 8 for best in found if best)


@pytest.mark.parametrize("name", ["2 × 2 × 2", "three stages"])
def test_the_shares_of_the_data_ranks_add_up_to_one_process(name):
    case = Case(name, 7)
    loss, embedding, head, layers = case.one_process()
    parts = [case.one_process(part) for part in range(case.data)]
    assert sum(part[0] for part in parts) / case.data == pytest.approx(loss, rel=1e-12)
    assert close(sum(part[1] + part[2] for part in parts) / case.data, embedding + head)
    assert not close(embedding, head) and not close(parts[0][1], parts[1][1])
    shapes = [case.of_rank(rank, None, layers)["a"].shape for rank in range(case.ranks)]
    assert {shape[1] * case.sizes["tensor"] for shape in shapes} == {layers[0][2].shape[1]}


# What the lab's text says of the paper's rows


def seconds_of_rows():
    return {
        row["name"]: layout_prediction.step_seconds(row["model"], row["layout"], row["batch"], layout_prediction.SELENE)
        for row in layout_prediction.rows()
    }


def test_all_rows_come_out_within_a_fifth():
    errors = {}
    for row in layout_prediction.rows():
        n = row["layout"]["tensor"] * row["layout"]["pipeline"] * row["layout"]["data"]
        flops = hardware_flops(Transformer(**row["model"]), row["batch"])
        seconds = sum(seconds_of_rows()[row["name"]].values())
        errors[row["name"]] = flops / n / seconds / 1e12 / row["tflops"] - 1
    assert len(errors) == 10 and all(abs(error) < 0.2 for error in errors.values())
    assert errors["1.7"] > 0.1 and errors["1008"] < -0.1, "small models too fast, the largest too slow"


def test_volumes_of_the_row_145_6():
    row = next(row for row in layout_prediction.rows() if row["name"] == "145.6")
    sent = layout_prediction.volumes(row["model"], row["layout"], row["batch"])
    assert sent["tensor"] > 500e9 and round(sent["data"] / 1e9) == 9
    assert sent["pipeline"] == pytest.approx(20e9, rel=0.05)
    assert sent["tensor"] / sent["data"] > 50


def test_what_the_explanation_says_of_the_parts():
    parts = seconds_of_rows()
    largest = list(parts.values())[-5:]
    assert all(min(row, key=row.get) == "data" for row in largest)
    last = parts["1008"]
    assert last["bubble"] > last["tensor"] + last["pipeline"] + last["data"]
    for row in layout_prediction.rows():
        sent = layout_prediction.volumes(row["model"], row["layout"], row["batch"])
        if row["layout"]["tensor"] == 8:
            assert sent["tensor"] > 5 * max(sent["pipeline"], sent["data"])
    speeds = [layout_prediction.SELENE[name]["bytes_per_second"] for name in ("inside", "between")]
    assert 10 <= speeds[0] / speeds[1] < 13


def test_the_145_6b_model_fits_on_40_gpus_and_would_take_nearly_two_years():
    row = next(row for row in layout_prediction.rows() if row["name"] == "145.6")
    machine = {"gpus_per_node": 8, "memory_bytes": 80e9}
    best = layout_memory.fewest(row["model"], row["batch"], 1, machine)
    assert layout_memory.gpus_of(best) == 40
    parameters = Transformer(**row["model"]).parameters
    assert 1.8 < training_days_estimate(parameters, 300e9, 40, row["tflops"] * 1e12) / 365 < 2
