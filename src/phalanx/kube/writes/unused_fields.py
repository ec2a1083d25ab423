"""Events about parts of gangs and queues that have no effect, or another one than is written: none
is ignored in silence."""

from collections.abc import Callable

from phalanx.kube.model.cluster_model import ClusterModel
from phalanx.kube.model.queues import queue_problem
from phalanx.kube.writes.calls import reference
from phalanx.kube.writes.event_writer import EventWriter


class UnusedFieldEvents:
    """Writes each sentence once per leader and object."""

    def __init__(self, events: EventWriter, may_act: Callable[[], bool]) -> None:
        self._events = events
        self._may_act = may_act
        #: By gang, and by queue: the sentences of which events were written.
        self._of_gangs: dict[str, tuple[str, ...]] = {}
        self._of_queues: dict[str, tuple[str, ...]] = {}

    def report(self, model: ClusterModel) -> None:
        if self._may_act():
            self._report_gangs(model)
            self._report_queues(model)

    def _report_gangs(self, model: ClusterModel) -> None:
        """The events are about the PodGroup, or about the first pod if there is none."""
        table, written = model.gangs, {}
        for job in table.noted:
            gang = table.gangs[job]
            if not any(model.pods.is_own(pod) for pod in gang.pods()):
                continue
            written[job] = gang.notes
            if self._of_gangs.get(job) != gang.notes:
                target = table.group_target(gang) or reference(next(gang.pods())).target
                for note in gang.notes:
                    self._events.warn(target, "FieldNotUsed", note)
        self._of_gangs = written

    def _report_queues(self, model: ClusterModel) -> None:
        written = {}
        for name, each in model.queues.items():
            problem = queue_problem(name, model.queues, model.state.queues)
            if problem is None and not each.notes:
                continue
            written[name] = (problem or "", *each.notes)
            if self._of_queues.get(name) != written[name] and each.target is not None:
                if problem is not None:
                    self._events.warn(each.target, "NotUsable", f"cannot be used: {problem}")
                for note in each.notes:
                    self._events.warn(each.target, "FieldNotUsed", note)
        self._of_queues = written
