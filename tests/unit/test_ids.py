"""Ids of jobs are short and random from the first character; ids of tasks have job and index."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Unknown
from phalanx.core.ids import DIGITS, JOB_ID_BITS, job_id, scrambled, split_task, task_id
from phalanx.core.spec import names

BITS = st.integers(0, 2**JOB_ID_BITS - 1)


@given(one=BITS, two=BITS)
def test_different_random_bits_give_different_ids(one: int, two: int) -> None:
    assert (job_id(one) == job_id(two)) is (one == two)


@given(bits=BITS)
def test_a_job_id_has_eight_digits_and_none_that_people_mistake(bits: int) -> None:
    job = job_id(bits)
    assert len(job) == len("j-7kq2m4xd")
    assert job.startswith("j-")
    assert set(job[2:]) <= set(DIGITS)
    assert not set("ilou") & set(DIGITS)
    assert names.job_reference(job) == job


def test_four_digits_name_one_of_a_hundred_jobs_in_practice() -> None:
    random = Random(7)  # noqa: S311
    jobs = [job_id(random.getrandbits(JOB_ID_BITS)) for _ in range(100)]
    assert len({job[:6] for job in jobs}) == 100


def test_consecutive_numbers_are_scrambled_into_ids_that_differ_from_the_first_digits() -> None:
    jobs = [job_id(scrambled(seq, 1_700_000_000_000_000)) for seq in range(1000)]
    assert len(set(jobs)) == 1000
    assert len({job[2] for job in jobs}) == len(DIGITS)
    assert len({job[-1] for job in jobs}) == len(DIGITS)


def test_every_number_and_its_position_change_what_is_scrambled() -> None:
    given_numbers = [(1, 2), (2, 1), (1, 2, 0), (1, 3), (2, 2), (1,), (0, 1), (1, 0)]
    assert len({scrambled(*numbers) for numbers in given_numbers}) == len(given_numbers)


@given(job=st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True), index=st.integers(0, 9))
def test_a_task_id_is_split_into_its_job_and_index(job: str, index: int) -> None:
    assert split_task(task_id(job, index)) == (job, index)


@pytest.mark.parametrize(
    "text", ["", "j-1", "j-1.", ".3", "j-1.x", "j-1.-1", "j-1. 1", "j-1.1.5x", "j-1." + "9" * 5000]
)
def test_text_that_is_not_a_task_id_is_refused(text: str) -> None:
    with pytest.raises(Unknown, match=r"a task id is JOB\.INDEX"):
        split_task(text)


def test_a_refused_id_is_not_echoed_at_full_length() -> None:
    with pytest.raises(Unknown) as refusal:
        split_task("x" * 100_000)
    assert len(str(refusal.value)) < 200
