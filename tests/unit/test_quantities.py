"""Quantities are exact, limited, and printed as a user writes them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Invalid
from phalanx.core.spec.quantities import LARGEST, allowance, amount, capacity, native, resources

GI = 1024**3


@pytest.mark.parametrize(
    ("name", "written", "kept"),
    [
        ("cpu", 4, 4000),
        ("cpu", "4", 4000),
        ("cpu", 0.5, 500),
        ("cpu", "500m", 500),
        ("cpu", "1.5", 1500),
        ("cpu", ".25", 250),
        ("cpu", "2.", 2000),
        ("cpu", "+1", 1000),
        ("cpu", "3000000u", 3000),
        ("cpu", "1000000n", 1),
        ("cpu", 0.1, 100),
        ("memory", "32Gi", 32 * GI),
        ("memory", "1.5Gi", 3 * GI // 2),
        ("memory", "1G", 10**9),
        ("memory", "1e3", 1000),
        ("memory", "1E3", 1000),
        ("memory", "1E", 10**18),
        ("memory", "1Ki", 1024),
        ("memory", "7Ei", 7 * 2**60),
        ("memory", "500000m", 500),
        ("memory", 1e9, 10**9),
        ("memory", LARGEST, LARGEST),
        ("memory_mb", 1024, GI),
        ("memory_mb", 0.5, 512 * 1024),
        ("gpu", 1, 1000),
        ("gpu", 8, 8000),
        ("gpu", 0.5, 500),
        ("gpu", "250m", 250),
        ("gpu", "1.0", 1000),
        ("nvidia.com/gpu", 2, 2),
        ("licence", "2k", 2000),
        ("vram_mb", 8192.0, 8192),
        ("cpu", "0e999999999", 0),
    ],
)
def test_an_amount_is_kept_exactly(name: str, written: object, kept: int) -> None:
    assert amount(name, written) == kept


@pytest.mark.parametrize(
    ("name", "written", "said"),
    [
        ("cpu", 0.0001, "not a whole number of thousandths of a CPU"),
        ("cpu", "1n", "not a whole number of thousandths of a CPU"),
        ("cpu", "1e-999999999", "not a whole number of thousandths of a CPU"),
        ("memory", "500m", "not a whole number of bytes"),
        ("memory", "0.1Gi", "not a whole number of bytes"),
        ("gpu", 1.5, "a fraction of one GPU or whole GPUs"),
        ("gpu", 0.3333, "not a whole number of thousandths of a GPU"),
        ("licence", 0.5, "not a whole number; round it"),
        ("memory_mb", "1Gi", "memory_mb is a number of MiB"),
        ("memory", LARGEST + 1, "too large; write a smaller amount"),
        ("memory", "8Ei", "too large; write a smaller amount"),
        ("memory", "1e999999999", "too large; write a smaller amount"),
        ("memory", "1e99999999999999", "not a quantity"),
        pytest.param("memory", 10**5000, "too large; write a smaller amount", id="5001 digits"),
        ("cpu", -1, "cannot be negative"),
        ("cpu", "-500m", "cannot be negative"),
        ("cpu", -0.5, "cannot be negative"),
        ("cpu", math.nan, "not a quantity"),
        ("cpu", math.inf, "not a quantity"),
        ("cpu", "nan", "not a quantity"),
        ("cpu", True, "not a quantity"),
        ("cpu", None, "not a quantity"),
        ("cpu", [1], "is a list, not a quantity"),
        ("cpu", {"a": 1}, "is a mapping, not a quantity"),
        ("cpu", "", "not a quantity"),
        ("cpu", "1 Gi", "not a quantity"),
        ("cpu", "1gi", "not a quantity"),
        ("cpu", "1e", "not a quantity"),
        ("gpu", "two", "write a number, like 2 or 0.5"),
        ("cpu", "two", "write a number, like 4, 0.5 or 500m"),
        ("memory", "two", "one of the suffixes m, k, M,"),
        ("cpu", "\u0661", "not a quantity"),
        pytest.param("cpu", "9" * 100_000, "not a quantity", id="100000 digits"),
    ],
)
def test_an_invalid_amount_is_refused(name: str, written: object, said: str) -> None:
    with pytest.raises(Invalid) as refused:
        amount(name, written)
    [problem] = refused.value.problems
    assert said in problem.message
    assert len(problem.message) < 300


def test_requests_of_0_are_left_out() -> None:
    assert resources({"gpu": 0, "cpu": 1}) == {"cpu": 1000}


def test_a_capacity_of_0_is_kept() -> None:
    assert capacity({"gpu": 0, "cpu": 1}) == {"gpu": 0, "cpu": 1000}


def test_a_queue_can_have_a_quota_of_one_and_a_half_gpus() -> None:
    assert allowance({"gpu": 1.5}) == {"gpu": 1500}
    assert native({"gpu": 1500}) == {"gpu": 1.5}


def test_memory_in_mib_is_memory() -> None:
    assert resources({"memory_mb": 1024}) == {"memory": GI}


def test_memory_and_memory_mb_are_one_resource() -> None:
    with pytest.raises(
        Invalid, match="memory_mb is the same resource as memory; write one of them"
    ):
        resources({"memory": "1Gi", "memory_mb": 1024})


def test_every_problem_of_a_mapping_has_its_path() -> None:
    with pytest.raises(Invalid) as refused:
        resources({"cpu": -1, "a b": 1, "nvidia.com/gpu": "x", "a/b/c": 1, "": 1, 7: 1, "ok": 1})
    assert [problem.path for problem in refused.value.problems] == [
        "cpu",
        '["a b"]',
        '["nvidia.com/gpu"]',
        '["a/b/c"]',
        '[""]',
        "7",
    ]


@pytest.mark.parametrize("written", [None, 1, "cpu=1", ["cpu"], True])
def test_resources_are_a_mapping(written: object) -> None:
    with pytest.raises(Invalid, match="write a mapping of resources to amounts"):
        resources(written)


def test_amounts_print_as_a_user_would_write_them() -> None:
    assert native(
        {"cpu": 4000, "memory": 32 * GI, "gpu": 500, "licence": 3},
    ) == {"cpu": 4, "memory": "32Gi", "gpu": 0.5, "licence": 3}
    assert native({"cpu": 500, "memory": 1025, "gpu": 2000}) == {
        "cpu": "500m",
        "memory": 1025,
        "gpu": 2,
    }


amounts = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.integers(0, LARGEST),
        "memory": st.integers(0, LARGEST) | st.integers(0, 63).map(lambda n: 2**n - (n == 63)),
        "gpu": st.integers(0, 999) | st.integers(0, LARGEST // 1000).map(lambda n: n * 1000),
        "nvidia.com/gpu": st.integers(0, LARGEST),
    },
)


@given(amounts)
def test_what_is_printed_reads_back_the_same(kept: dict[str, int]) -> None:
    assert capacity(native(kept)) == kept


@given(st.integers(0, 10**12), st.sampled_from(["", "m", "k", "M", "Ki", "Mi"]))
def test_a_whole_number_with_a_suffix_is_a_multiple(number: int, suffix: str) -> None:
    scale = {"": 1000, "m": 1, "k": 10**6, "M": 10**9, "Ki": 1024 * 1000, "Mi": 1024**2 * 1000}
    kept = number * scale[suffix]
    if kept <= LARGEST:
        assert amount("cpu", f"{number}{suffix}") == kept


@given(st.text() | st.floats() | st.integers() | st.binary())
def test_any_value_is_an_amount_in_bounds_or_refused(written: object) -> None:
    try:
        kept = amount("memory", written)
    except Invalid:
        return
    assert 0 <= kept <= LARGEST
