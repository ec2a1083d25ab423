"""Volcano's Job: tasks are roles, policies say how it restarts, plugins add variables."""

import re
from typing import NamedTuple

from phalanx.core.spec.durations import duration
from phalanx.core.spec.fields import items, text
from phalanx.core.spec.names import dns_label
from phalanx.manifest.draft import Draft, Said
from phalanx.manifest.metadata import metadata_of
from phalanx.manifest.pod import pod_of
from phalanx.manifest.pod_gangs import put_shared
from phalanx.manifest.problems import ReadOptions
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
    view: StrictMapping
    replicas: int
    least: int | None


def draft_of(document: StrictMapping, settings: ReadOptions) -> Draft:
    metadata = metadata_of(document)
    document.skip("status")
    spec = document.view("spec")
    spec.skip("schedulerName", "runningEstimate")
    draft = Draft(document.where)
    metadata.name_job(draft)
    draft.put("queue", spec.read("queue", text), spec.where.at("queue"))
    draft.put("max_retries", spec.read("maxRetry", whole(0)), spec.where.at("maxRetry"))
    spec.note_retention()
    plugins = _plugins(spec.view("plugins"))
    tasks = sorted(_tasks(spec), key=lambda task: task.name != plugins.master)
    where = spec.where.at("plugins")
    if plugins.master is not None and plugins.master not in {task.name for task in tasks}:
        spec.wrong(f"has the master {plugins.master}, which is no task", "plugins", "pytorch")
    variables = plugins.variables([task.name for task in tasks])
    _put_minimum(draft, spec, tasks)
    policies = _Policies(draft)
    for policy in spec.views("policies"):
        policies.take(policy, tasks[0].name if len(tasks) == 1 else None)
    pods = []
    for task in tasks:
        pod = pod_of(task.view.view("template"), settings, variables)
        for name, reference in variables.items():
            pod.role.put_in("env", name, reference, where)
        pod.role.put("replicas", task.replicas, task.view.where.at("replicas"))
        pod.role.put("min", task.least, task.view.where.at("minAvailable"))
        draft.roles[task.name] = pod.role
        pods.append((task.name, pod))
        for policy in task.view.views("policies"):
            policies.take(policy, task.name)
    if pods:
        put_shared(draft, pods, spec.findings)
    klass = spec.read("priorityClassName", text)
    if klass is not None:
        draft.fields.pop("priority", None)
        draft.put("priority_class", klass, spec.where.at("priorityClassName"))
    policies.settle()
    return draft


def _tasks(spec: StrictMapping) -> list[_Task]:
    tasks: dict[str, _Task] = {}
    for number, view in enumerate(spec.views("tasks")):
        name = view.read("name", dns_label) or f"default{number}"
        if name in tasks:
            view.wrong(f"is {name}, which is listed before; choose another", "name")
            view.skip(*view.rest())
            continue
        replicas = view.read("replicas", whole(1)) or 1
        least = view.read("minAvailable", whole(0))
        if least is not None and least > replicas:
            view.wrong(f"is {least} and replicas is {replicas}; lower it", "minAvailable")
        tasks[name] = _Task(name, view, replicas, least)
    if not tasks:
        spec.wrong("is missing; write a list of tasks, each with a template", "tasks")
    return list(tasks.values())


def _put_minimum(draft: Draft, spec: StrictMapping, tasks: list[_Task]) -> None:
    """A minimum of the job that is below the sum of its tasks' sets theirs aside."""
    least = spec.read("minAvailable", whole(1))
    if least is None:
        return
    total = sum(task.replicas for task in tasks)
    if least > total:
        spec.wrong(f"is {least} and the tasks have {total} replicas; lower it", "minAvailable")
        return
    of_tasks = sum(task.replicas if task.least is None else task.least for task in tasks)
    if least != of_tasks:
        draft.put("min_available", least, spec.where.at("minAvailable"))
    for number, task in enumerate(tasks):
        if least < of_tasks:
            tasks[number] = task._replace(least=0)
        elif least > of_tasks and task.least is None:
            tasks[number] = task._replace(least=task.replicas)


# Plugins


class _Plugins(NamedTuple):
    names: tuple[str, ...]
    master: str | None  #: the task that others connect to

    def variables(self, tasks: list[str]) -> dict[str, str]:
        """Those that the plugins add, each a reference to what is known at the start."""
        found: dict[str, str] = {}
        if "env" in self.names:
            found |= {"VC_TASK_INDEX": "$(task.index)", "VK_TASK_INDEX": "$(task.index)"}
        if "svc" in self.names:
            for task in tasks:
                word = re.sub(r"[^A-Z0-9]", "_", task.upper())
                found[f"VC_{word}_HOSTS"] = f"$(hosts.{task})"
                found[f"VC_{word}_NUM"] = f"$(count.{task})"
        return found


def _plugins(view: StrictMapping) -> _Plugins:
    """Of `pytorch` only its master matters: every process is told ranks and where rank 0 is."""
    words = {
        name: view.read(name, lambda value: items(value, "a list of strings")) or []
        for name in ("env", "svc", "pytorch")
        if name in view.rest()
    }
    view.unsupported(view.rest(), "is a plugin that is not supported")
    if "pytorch" not in words:
        return _Plugins(tuple(words), None)
    given = (str(word).partition("=") for word in words["pytorch"])
    chosen = next((value for flag, _, value in given if flag == "--master"), "master")
    return _Plugins(tuple(words), chosen)


# Policies


class _Policies:
    """What the policies of a job and of its tasks come to."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._restart: Said | None = None

    def settle(self) -> None:
        where = self._restart.where if self._restart else self._draft.where
        self._draft.put("restart", self._restart.value if self._restart else "never", where)

    def take(self, policy: StrictMapping, task: str | None) -> None:
        """`task` is the one that it is about; None where that could be any of several."""
        one = policy.read("event", choice({event: event for event in _EVENTS}))
        many = policy.read("events", lambda value: items(value, "a list of events")) or []
        events = [*([one] if one else []), *(str(event) for event in many)]
        action = policy.read("action", choice({action: action for action in _ACTIONS}))
        if policy.take("exitCode") is not None:
            policy.findings.unsupported(
                policy.where.at("exitCode"), "is a policy for one exit code, which is not supported"
            )
            policy.skip("timeout")
            return
        timeout = policy.read("timeout", duration)
        if not events and action is not None:
            policy.wrong("is missing; write what the action follows", "event")
        for event in events:
            self._take(policy, event, action or "", timeout, task)

    def _take(
        self, policy: StrictMapping, event: str, action: str, timeout: int | None, task: str | None
    ) -> None:
        where = policy.where
        if event == "PodPending" and timeout and action in _ENDS:
            self._draft.put("schedule_timeout", timeout / 1_000_000, where.at("timeout"))
        elif timeout:
            policy.findings.unsupported(where.at("timeout"), "is a delay, which is not supported")
        elif event in _FAILURES and action in _RESTARTS:
            self._set_restart(policy, Said(_RESTARTS[action], where.at("action")))
        elif event == "PodEvicted" and action == "RestartJob":
            pass  # an evicted gang waits and starts again by itself
        elif event == "PodEvicted" and action in _ENDS:
            self._set_restart(policy, Said("never", where.at("action")))
        elif event == "TaskCompleted" and action == "CompleteJob" and task is not None:
            self._draft.put("complete_when", task, where)
        else:
            policy.findings.unsupported(
                where, f"asks for {action} after {event}, which is not supported"
            )

    def _set_restart(self, policy: StrictMapping, restart: Said) -> None:
        if self._restart is not None and self._restart.value != restart.value:
            policy.findings.unsupported(
                restart.where,
                f"differs from {self._restart.where}, and a job restarts in one way",
            )
        elif self._restart is None:
            self._restart = restart
