"""The rules that a simulation checks in addition to those of the core, by name."""

from enum import StrEnum

from phalanx.core.invariants import InvariantViolated, Violation


class SimulationInvariant(StrEnum):
    """The rules by name. Tests refer to the names."""

    ACKNOWLEDGED_JOBS_ARE_STORED = "acknowledged-jobs-are-stored"
    REFUSED_JOBS_ARE_NOT_STORED = "refused-jobs-are-not-stored"
    FINISHED_JOBS_DO_NOT_CHANGE = "finished-jobs-do-not-change"
    ATTEMPTS_RUN_ONCE = "attempts-run-once"
    PROCESS_AFTER_COMMITTED_RELEASE = "process-after-committed-release"
    PROCESS_AFTER_ALL_ARE_READY = "process-after-all-are-ready"
    DEVICES_ARE_NOT_OVERUSED = "devices-are-not-overused"
    FAILURES_END_A_JOB = "failures-end-a-job"
    VANISHED_PROCESSES_ARE_DEAD = "vanished-processes-are-dead"
    # At the end of a run, after the last fault
    JOBS_END = "jobs-end"
    PROCESSES_END = "processes-end"


def violated(invariant: SimulationInvariant, detail: str) -> InvariantViolated:
    return InvariantViolated(Violation(invariant, detail))
