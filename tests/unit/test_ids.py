"""Names of jobs sort by time; names of tasks can be taken apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import Unknown
from phalanx.core.ids import NOISE_BITS, job_id, split_task, task_id

TIMES = st.integers(0, 2**50 * 1000 - 1)
NOISE = st.integers(0, 2**NOISE_BITS - 1)


@given(one=TIMES, two=TIMES, noise=NOISE, other=NOISE)
def test_a_later_job_sorts_after_an_earlier_one(one: int, two: int, noise: int, other: int) -> None:
    earlier, later = sorted((one // 1000, two // 1000))
    if earlier < later:
        assert job_id(earlier * 1000, noise) < job_id(later * 1000, other)


@given(at=TIMES, one=NOISE, two=NOISE)
def test_jobs_of_one_millisecond_differ_by_their_noise(at: int, one: int, two: int) -> None:
    assert (job_id(at, one) == job_id(at, two)) is (one == two)


@given(at=TIMES, noise=NOISE)
def test_a_job_id_is_a_dns_label_of_fixed_length(at: int, noise: int) -> None:
    name = job_id(at, noise)
    assert name.startswith("j-")
    assert len(name) == 22
    assert set(name[2:]) <= set("0123456789abcdefghjkmnpqrstvwxyz")


@given(job=st.from_regex(r"[a-z][a-z0-9.-]{0,20}[a-z0-9]", fullmatch=True), index=st.integers(0, 9))
def test_a_task_id_comes_apart_as_it_was_put_together(job: str, index: int) -> None:
    assert split_task(task_id(job, index)) == (job, index)


@pytest.mark.parametrize(
    "text", ["", "j-1", "j-1.", ".3", "j-1.x", "j-1.-1", "j-1. 1", "j-1.1.5x", "j-1." + "9" * 5000]
)
def test_what_is_no_task_id_is_refused(text: str) -> None:
    with pytest.raises(Unknown, match=r"tasks are named JOB\.INDEX"):
        split_task(text)


def test_a_refused_id_is_not_echoed_at_full_length() -> None:
    with pytest.raises(Unknown) as refusal:
        split_task("x" * 100_000)
    assert len(str(refusal.value)) < 200
