"""Arrays in files: indices, grids of parameters, placeholders."""

from typing import Any

import pytest
from tests.driver import Driver, spec

from phalanx.core.environment import GangEnvironment, command_of
from phalanx.core.errors import Invalid, Unknown
from phalanx.core.spec.arrays import ArraySpec, array, parsed_indices, selected, written_array
from phalanx.core.spec.native_form import native
from phalanx.core.spec.placeholders import filled, filled_variable
from phalanx.core.spec.references import references
from phalanx.core.spec.secret_references import secrets_in
from phalanx.core.spec.validation import job_spec
from phalanx.manifest.documents import read


def test_indices_are_numbers_and_ranges_with_steps() -> None:
    indices = parsed_indices("1,3,7-11:2, 20-21")
    assert list(indices) == [1, 3, 7, 9, 11, 20, 21]
    assert str(indices) == "1,3,7-11:2,20-21"
    assert [indices.position(index) for index in (1, 9, 21, 8)] == [0, 3, 6, None]
    assert [indices[position] for position in range(len(indices))] == list(indices)


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("5-3", "has the range 5-3; write the lower index first"),
        ("0-9:0", "has the range 0-9:0; the step is at least 1"),
        ("1,2,1", "has the index 1 twice; write each index once"),
        ("0-9,x", 'is "0-9,x"; write indices like 0-19 or 1,3,7-9:2, from 0 to 999999999'),
        ("-3", 'is "-3"; write indices like 0-19 or 1,3,7-9:2, from 0 to 999999999'),
        ("", 'is ""; write indices like 0-19 or 1,3,7-9:2, from 0 to 999999999'),
        ("0-10000", "has 10001 elements; an array has at most 10000: split it into several arrays"),
        ("0-19%0", 'is "0-19%0"; after % comes how many elements run at the same time, from 1 to'),
        ("0-19%10001", 'is "0-19%10001"; after % comes how many elements run at the same time'),
        ("0-19%x", 'is "0-19%x"; after % comes how many elements run at the same time, from 1 to'),
        ({"indices": "0-19", "parallel": 0}, "parallel is 0; it must be at least 1"),
    ],
)
def test_other_indices_are_refused(written: str, problem: str) -> None:
    with pytest.raises(Invalid) as refused:
        array(written)
    assert str(refused.value).removeprefix("indices ").startswith(problem)


def test_the_short_form_of_an_array_has_the_parallel_limit() -> None:
    assert array("0-19%4") == ArraySpec("0-19", {}, 4)
    assert array({"indices": [4, 5, 6, 9]}) == ArraySpec("4-6,9", {}, None)
    assert array({"indices": 7}) == ArraySpec("7", {}, None)


def test_the_elements_of_parameters_are_the_points_of_their_grid() -> None:
    grid = array({"params": {"lr": ["1e-3", "1e-4"], "seed": [0, 1, 2]}})
    assert len(grid.elements) == 6
    assert grid.values(0) == {"index": "0", "lr": "1e-3", "seed": "0"}
    assert grid.values(2) == {"index": "2", "lr": "1e-3", "seed": "2"}
    assert grid.values(3) == {"index": "3", "lr": "1e-4", "seed": "0"}
    some = array({"params": {"lr": [0.5, True], "seed": [0, 1]}, "indices": "1,3"})
    assert [some.values(index)["lr"] for index in some.elements] == ["0.5", "true"]
    assert written_array(grid) == {"params": {"lr": ["1e-3", "1e-4"], "seed": ["0", "1", "2"]}}
    assert array(written_array(some)) == some


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "has no elements"),
        ({"params": {"lr": []}}, "params.lr has no values"),
        ({"params": {"Index": [1]}}, "params.Index is the placeholder of the element's index"),
        ({"params": {"lr": [1], "LR": [2]}}, "params.LR differs from another parameter only"),
        ({"params": {"a-b": [1]}}, "params.a-b is not the name of a parameter"),
        ({"params": {"lr": [1, 2]}, "indices": "1-2"}, "has the index 2, and the grid of its"),
        ({"params": {"a": list(range(101)), "b": list(range(100))}}, "has 10100 elements"),
        ({"params": {"lr": [[1]]}}, "params.lr[0] is a list; write a number or a string"),
        ({"index": "0-3"}, "index is not a known field; did you mean indices?"),
    ],
)
def test_other_arrays_are_refused(given: object, problem: str) -> None:
    with pytest.raises(Invalid) as refused:
        array(given)
    assert problem in str(refused.value)


def test_an_array_is_written_as_it_is_read() -> None:
    job = spec(array="0-9:3%2")
    assert native(job)["array"] == {"indices": "0-9:3", "parallel": 2}
    assert job_spec(native(job)) == job
    assert (job.elements, spec().elements) == (4, 1)


@pytest.mark.parametrize(
    "text",
    [
        "params: {lr: [1e-3, 1.50, 2, yes, '01']}",
        '{"params": {"lr": [1e-3, 1.50, 2, "yes", "01"]}}',
    ],
)
def test_values_of_parameters_are_kept_as_they_are_written(text: str) -> None:
    [document] = read(text.encode())
    assert array(document).params == {"lr": ("1e-3", "1.50", "2", "yes", "01")}


def test_selected_elements_exist() -> None:
    assert selected(array("0-9"), "3-5") == [3, 4, 5]
    with pytest.raises(Unknown, match="the array has no element 10; its indices are 0-9"):
        selected(array("0-9"), "9-10")


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("--seed={index}", "--seed=7"),
        ("{index}{lr}", "71e-3"),
        ("awk '{print $1}' {}", "awk '{print $1}' {}"),
        ("${index} ${lr:-0}", "${index} ${lr:-0}"),
        ("{{index}} {{ .Name }}", "{index} {{ .Name }}"),
        ('{"seed": {index}}', '{"seed": 7}'),
        ("{'a': 1}", "{'a': 1}"),
    ],
)
def test_placeholders_are_replaced_and_other_braces_stay(template: str, text: str) -> None:
    assert filled(template, {"index": "7", "lr": "1e-3"}) == text


@pytest.mark.parametrize("written", ["{idx}", "{Index}", "{ index }", "{LR}", "{index:03d}"])
def test_a_text_that_is_almost_a_placeholder_is_refused(written: str) -> None:
    fields: dict[str, Any] = {"array": {"params": {"lr": [1, 2]}}}
    meant = "lr" if "l" in written.lower() else "index"
    with pytest.raises(Invalid) as refused:
        spec(role={"command": ["train", written]}, **fields)
    assert str(refused.value) == (
        f"roles.worker.command has {written}; did you mean {{{meant}}}? Write {{{written}}} to keep"
        f" the text {written}"
    )
    with pytest.raises(Invalid, match=r"roles\.worker\.env\.OUT has"):
        spec(role={"env": {"OUT": written}}, **fields)
    kept = spec(role={"command": ["train", f"{{{written}}}"]}, **fields)
    assert filled(kept.roles[0].command[1], {"index": "0", "lr": "1"}) == written


def test_an_array_is_not_part_of_a_group() -> None:
    with pytest.raises(Invalid, match="group cannot be combined with array"):
        spec(array="0-3", group=["default/other"])


def test_tasks_of_an_element_get_its_index_and_parameters() -> None:
    driver = Driver()
    driver.fleet("w0", "w1")
    job = driver.submit(
        spec(
            2,
            role={
                "command": ["train", "--lr", "{lr}", "${lr}"],
                "env": {"OUT": "/runs/{index}/$(task.index)", "PLAIN": "{}"},
            },
            array={"params": {"lr": ["1e-3", "1e-4"]}},
        )
    )
    element = f"{job}[1]"
    driver.place(element, "w0", "w1")
    gang = driver.gang(element)
    assert command_of(gang.job, gang.role(0)) == ("train", "--lr", "1e-4", "${lr}")
    env = GangEnvironment(gang, driver.cluster.nodes).environment(gang.tasks[1])
    wanted = {
        "OUT": "/runs/1/1",
        "PLAIN": "{}",
        "PHALANX_JOB": element,
        "PHALANX_ARRAY": job,
        "PHALANX_ARRAY_INDEX": "1",
        "PHALANX_ARRAY_SIZE": "2",
        "PHALANX_PARAM_LR": "1e-4",
    }
    assert {name: env[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("template", "value"),
    [
        ("{p}", "${resources.hub.token}"),
        ("{p}{resources.hub.token}", "$"),
        ("${resources.{p}.token}", "hub"),
        ("{p}", "$(task.index)"),
        ("${resources.own.key}{p}", "${resources.hub.token}"),
    ],
)
def test_no_value_of_a_parameter_becomes_a_reference(template: str, value: str) -> None:
    text = filled_variable(template, {"p": value})
    assert secrets_in(text) == secrets_in(template)
    assert list(references(text)) == []
