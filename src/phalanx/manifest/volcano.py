"""The Job of Volcano: tasks become roles, policies the restart policy, plugins variables."""

import re
from typing import NamedTuple

from phalanx.core.spec.durations import duration
from phalanx.core.spec.fields import items, text
from phalanx.core.spec.names import dns_label
from phalanx.core.time_units import SECOND
from phalanx.manifest.draft import JobDraft, LocatedValue
from phalanx.manifest.gang_draft import put_pod_fields
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import pod_of
from phalanx.manifest.read_options import ReadOptions
from phalanx.manifest.strict_mapping import StrictMapping, choice, whole

VERSION = "batch.volcano.sh/v1alpha1"

_EVENTS = ("*", "PodFailed", "PodEvicted", "PodPending", "TaskCompleted", "TaskFailed")
_ACTIONS = (
    *("AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob"),
)
_FAILURES = ("*", "PodFailed", "TaskFailed")
_RESTARTS = {
    "RestartJob": "gang",
    "RestartTask": "task",
    "RestartPod": "task",
    "AbortJob": "never",
    "TerminateJob": "never",
}
_ENDS = ("AbortJob", "TerminateJob")


class _Task(NamedTuple):
    name: str
    mapping: StrictMapping
    replicas: int
    minimum: int | None


def draft_of(document: StrictMapping, options: ReadOptions) -> JobDraft:
    metadata = metadata_of(document)
    document.ignore("status")
    spec = document.mapping("spec")
    spec.ignore("schedulerName", "runningEstimate")
    draft = JobDraft(document.location)
    metadata.name_job(draft)
    draft.put("queue", spec.read("queue", text), spec.location.at("queue"))
    draft.put("max_retries", spec.read("maxRetry", whole(0)), spec.location.at("maxRetry"))
    spec.note_retention()
    plugins = _plugins(spec.mapping("plugins"))
    tasks = sorted(_tasks(spec), key=lambda task: task.name != plugins.master)
    location = spec.location.at("plugins")
    if plugins.master is not None and plugins.master not in {task.name for task in tasks}:
        spec.problem(
            f"names the master {plugins.master}, which is not a task; write the name of a task",
            "plugins",
            "pytorch",
        )
    variables = plugins.variables([task.name for task in tasks])
    _put_minimum(draft, spec, tasks)
    policies = _Policies(draft)
    for policy in spec.mappings("policies"):
        policies.take(policy, tasks[0].name if len(tasks) == 1 else None)
    pods = []
    for task in tasks:
        pod = pod_of(task.mapping.mapping("template"), options, variables)
        for name, reference in variables.items():
            pod.role.put_in("env", name, reference, location)
        pod.role.put("replicas", task.replicas, task.mapping.location.at("replicas"))
        pod.role.put("min", task.minimum, task.mapping.location.at("minAvailable"))
        draft.roles[task.name] = pod.role
        pods.append((task.name, pod))
        for policy in task.mapping.mappings("policies"):
            policies.take(policy, task.name)
    if pods:
        put_pod_fields(draft, pods, spec.problems)
    priority_class = spec.read("priorityClassName", text)
    if priority_class is not None:
        draft.fields.pop("priority", None)
        draft.put("priority_class", priority_class, spec.location.at("priorityClassName"))
    policies.put_restart()
    return draft


def _tasks(spec: StrictMapping) -> list[_Task]:
    tasks: dict[str, _Task] = {}
    for number, mapping in enumerate(spec.mappings("tasks")):
        name = mapping.read("name", dns_label) or f"default{number}"
        if name in tasks:
            mapping.problem(f"is {name}, which another task has; choose another name", "name")
            mapping.ignore(*mapping.unread())
            continue
        replicas = mapping.read("replicas", whole(1)) or 1
        minimum = mapping.read("minAvailable", whole(0))
        if minimum is not None and minimum > replicas:
            mapping.problem(f"is {minimum} but replicas is {replicas}; lower it", "minAvailable")
        tasks[name] = _Task(name, mapping, replicas, minimum)
    if not tasks:
        spec.problem("is missing; write a list of tasks, each with a template", "tasks")
    return list(tasks.values())


def _put_minimum(draft: JobDraft, spec: StrictMapping, tasks: list[_Task]) -> None:
    """Set the minimum of the job. If it is below the sum of its tasks', theirs do not count."""
    minimum = spec.read("minAvailable", whole(1))
    if minimum is None:
        return
    total = sum(task.replicas for task in tasks)
    if minimum > total:
        spec.problem(
            f"is {minimum} but the tasks have {total} replicas in total; lower it", "minAvailable"
        )
        return
    of_tasks = sum(task.replicas if task.minimum is None else task.minimum for task in tasks)
    if minimum != of_tasks:
        draft.put("min_available", minimum, spec.location.at("minAvailable"))
    for number, task in enumerate(tasks):
        if minimum < of_tasks:
            tasks[number] = task._replace(minimum=0)
        elif minimum > of_tasks and task.minimum is None:
            tasks[number] = task._replace(minimum=task.replicas)


# Plugins


class _Plugins(NamedTuple):
    names: tuple[str, ...]
    master: str | None  #: the task that others connect to

    def variables(self, tasks: list[str]) -> dict[str, str]:
        """The variables that the plugins add, each with a reference of the native form."""
        variables: dict[str, str] = {}
        if "env" in self.names:
            variables |= {"VC_TASK_INDEX": "$(task.index)", "VK_TASK_INDEX": "$(task.index)"}
        if "svc" in self.names:
            for task in tasks:
                name = re.sub(r"[^A-Z0-9]", "_", task.upper())
                variables[f"VC_{name}_HOSTS"] = f"$(hosts.{task})"
                variables[f"VC_{name}_NUM"] = f"$(count.{task})"
        return variables


def _plugins(mapping: StrictMapping) -> _Plugins:
    """The plugins. `pytorch` only chooses the master: every task has the rank variables anyway."""
    words = {
        name: mapping.read(name, lambda value: items(value, "a list of strings")) or []
        for name in ("env", "svc", "pytorch")
        if name in mapping.unread()
    }
    mapping.unsupported(mapping.unread(), "is not a supported plugin")
    if "pytorch" not in words:
        return _Plugins(tuple(words), None)
    given = (str(word).partition("=") for word in words["pytorch"])
    chosen = next((value for flag, _, value in given if flag == "--master"), "master")
    return _Plugins(tuple(words), chosen)


# Policies


class _Policies:
    """Translates the policies of a job and of its tasks into fields of the job."""

    def __init__(self, draft: JobDraft) -> None:
        self._draft = draft
        self._restart: LocatedValue | None = None

    def put_restart(self) -> None:
        """Set the restart policy, once all policies have been read."""
        location = self._restart.location if self._restart else self._draft.location
        self._draft.put("restart", self._restart.value if self._restart else "never", location)

    def take(self, policy: StrictMapping, task: str | None) -> None:
        """Translate a policy of this task; None is a policy of a job with several tasks."""
        single = policy.read("event", choice({event: event for event in _EVENTS}))
        many = policy.read("events", lambda value: items(value, "a list of events")) or []
        events = [*([single] if single else []), *(str(event) for event in many)]
        action = policy.read("action", choice({action: action for action in _ACTIONS}))
        if policy.take("exitCode") is not None:
            policy.problems.add_unsupported(
                policy.location.at("exitCode"), "selects one exit code, which is not supported"
            )
            policy.ignore("timeout")
            return
        timeout = policy.read("timeout", duration)
        if not events and action is not None:
            policy.problem("is missing; write the event that the action follows", "event")
        for event in events:
            self._take(policy, event, action or "", timeout, task)

    def _take(
        self, policy: StrictMapping, event: str, action: str, timeout: int | None, task: str | None
    ) -> None:
        location = policy.location
        if event == "PodPending" and timeout and action in _ENDS:
            self._draft.put("schedule_timeout", timeout / SECOND, location.at("timeout"))
        elif timeout:
            policy.problems.add_unsupported(
                location.at("timeout"), "is a delay, which is not supported"
            )
        elif event in _FAILURES and action in _RESTARTS:
            self._set_restart(policy, LocatedValue(_RESTARTS[action], location.at("action")))
        elif event == "PodEvicted" and action == "RestartJob":
            pass  # an evicted gang is requeued in any case
        elif event == "PodEvicted" and action in _ENDS:
            self._set_restart(policy, LocatedValue("never", location.at("action")))
        elif event == "TaskCompleted" and action == "CompleteJob" and task is not None:
            self._draft.put("complete_when", task, location)
        else:
            policy.problems.add_unsupported(
                location, f"combines {event} with {action}, which is not supported"
            )

    def _set_restart(self, policy: StrictMapping, restart: LocatedValue) -> None:
        if self._restart is not None and self._restart.value != restart.value:
            policy.problems.add_unsupported(
                restart.location,
                f"differs from {self._restart.location}, but a job has one restart policy",
            )
        elif self._restart is None:
            self._restart = restart
