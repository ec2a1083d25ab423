"""The options of `submit` and `plan` that describe the job of a command."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from phalanx.cli import completion
from phalanx.cli.exits import Status, end
from phalanx.cli.options import one_of, whole_number
from phalanx.core.spec.job import CheckpointPolicy, PartialCompletion

_GANG, _JOB, _ARRAY = "Gang", "Job", "Array"
_RESOURCES = ("gpu", "cpu", "memory")
Gang = Annotated[
    int | None,
    typer.Option(
        "--gang",
        metavar="NUMBER",
        parser=whole_number(1),
        help="Number of tasks, which start together. [default: 1]",
        rich_help_panel=_GANG,
    ),
]
Gpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="AMOUNT",
        help="GPUs per task; a fraction shares one GPU.",
        rich_help_panel=_GANG,
    ),
]
Cpu = Annotated[
    str | None,
    typer.Option("--cpu", metavar="AMOUNT", help="CPUs per task.", rich_help_panel=_GANG),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory", metavar="AMOUNT", help="Memory per task, like 32Gi.", rich_help_panel=_GANG
    ),
]
Environment = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="Environment variable; repeat for more.",
        rich_help_panel=_GANG,
    ),
]
Workdir = Annotated[
    str | None,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Working directory on the worker. [default: the current directory, if the server runs"
        " on this machine]",
        rich_help_panel=_GANG,
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="Job name.", rich_help_panel=_JOB),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", metavar="NAME", help="Namespace.", rich_help_panel=_JOB),
]
Queue = Annotated[
    str | None,
    typer.Option(
        "--queue",
        metavar="NAME",
        help="Queue to submit to.",
        rich_help_panel=_JOB,
        autocompletion=completion.queues,
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        metavar="NUMBER",
        parser=whole_number(),
        help="Priority; higher numbers start first.",
        rich_help_panel=_JOB,
    ),
]
TimeLimit = Annotated[
    str | None,
    typer.Option(
        "--time-limit",
        metavar="TIME",
        help="Longest duration of one attempt, like 90m or 6h.",
        rich_help_panel=_JOB,
    ),
]
Checkpoint = Annotated[
    CheckpointPolicy | None,
    typer.Option(
        "--checkpoint",
        metavar="POLICY",
        parser=one_of(CheckpointPolicy),
        help="What tasks save when the job is stopped: none, each (one checkpoint per task) or all"
        " (a set that counts only if every task saved).",
        rich_help_panel=_JOB,
    ),
]
OnPartialCompletion = Annotated[
    PartialCompletion | None,
    typer.Option(
        "--on-partial-completion",
        metavar="ACTION",
        parser=one_of(PartialCompletion),
        help="What happens if the gang has to start again when some of its tasks are done: restart"
        " (all tasks start again) or fail. [default: restart with --checkpoint each or all]",
        rich_help_panel=_JOB,
    ),
]
Retries = Annotated[
    int | None,
    typer.Option(
        "--max-retries",
        metavar="NUMBER",
        parser=whole_number(),
        help="Number of failures after which the job fails.",
        rich_help_panel=_JOB,
    ),
]


Array = Annotated[
    str | None,
    typer.Option(
        "--array",
        metavar="INDICES",
        help="Run the command once for each index, like 0-19, 1,3,7-9:2 or 0-19%4 (4 at a time);"
        " {index} stands for it.",
        rich_help_panel=_ARRAY,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(
        "--param",
        metavar="NAME=VALUES",
        help="Run the command once for each value, like lr=1e-3,1e-4; {lr} stands for it. Repeat"
        " for a grid.",
        rich_help_panel=_ARRAY,
    ),
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel",
        metavar="NUMBER",
        parser=whole_number(1),
        help="How many elements of the array run at the same time.",
        rich_help_panel=_ARRAY,
    ),
]


def _after(flag: str, help_text: str) -> Any:
    return Annotated[
        list[str] | None,
        typer.Option(
            flag,
            metavar="JOB,…",
            help=help_text,
            rich_help_panel=_JOB,
            autocompletion=completion.jobs,
        ),
    ]


After = _after("--after", "Start when these jobs, by id or name, are done.")
AfterAny = _after("--afterany", "Start when these jobs have ended, in whatever phase.")
AfterNotOk = _after(
    "--afternotok", "Start when these jobs failed, were cancelled or timed out; else be cancelled."
)

#: The options by the name of the field that they set.
JOB_OPTIONS: dict[str, Any] = {
    "gang": Gang,
    "gpu": Gpu,
    "cpu": Cpu,
    "memory": Memory,
    "env": Environment,
    "workdir": Workdir,
    "name": Name,
    "namespace": Namespace,
    "queue": Queue,
    "priority": Priority,
    "time_limit": TimeLimit,
    "checkpoint": Checkpoint,
    "on_partial_completion": OnPartialCompletion,
    "max_retries": Retries,
    "after": After,
    "afterany": AfterAny,
    "afternotok": AfterNotOk,
    "array": Array,
    "param": Params,
    "parallel": Parallel,
}


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options to a command, whose parameter `given` gets the values by field."""

    def run(first: Any, **values: Any) -> None:
        fields = {field: values.pop(field) for field in JOB_OPTIONS}
        command(first, given=given_fields(fields), **values)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name != "given":
            parameters.append(parameter)
            continue
        parameters += (
            inspect.Parameter(field, parameter.kind, default=None, annotation=option)
            for field, option in JOB_OPTIONS.items()
        )
    run.__name__ = command.__name__
    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def given_fields(values: dict[str, Any]) -> dict[str, Any]:
    """The fields of the options that were given."""
    fields = values | {"env": _variables(values.get("env"))}
    for dependency in ("after", "afterany", "afternotok"):
        named = fields.get(dependency) or []
        fields[dependency] = [job.strip() for each in named for job in each.split(",")]
    fields["array"] = _array(
        fields.get("array"), fields.pop("param", None), fields.pop("parallel", None)
    )
    return {field: value for field, value in fields.items() if value is not None and value != []}


def refuse_file_options(*, ignore_image: bool, ignore_unsupported: bool) -> None:
    if ignore_image or ignore_unsupported:
        end(Status.USAGE, "--ignore-image and --ignore-unsupported need a file; pass it with -f")


def _array(indices: str | None, params: list[str] | None, parallel: int | None) -> Any:
    """The array of a job, in the form of a file."""
    if params is None or not params:
        if parallel is not None and indices is None:
            end(Status.USAGE, "--parallel is for an array; add --array or --param")
        return indices if parallel is None else {"indices": indices, "parallel": parallel}
    values: dict[str, list[str]] = {}
    for each in params:
        name, equals, listed = each.partition("=")
        if not equals or not listed:
            end(Status.USAGE, f"--param {name} has no values; write NAME=VALUE,VALUE")
        values.setdefault(name, []).extend(listed.split(","))
    array = {"indices": indices, "params": values, "parallel": parallel}
    return {name: value for name, value in array.items() if value is not None}


def _variables(given: list[str] | None) -> dict[str, str] | None:
    if not given:
        return None
    pairs = [variable.partition("=") for variable in given]
    for name, equals, _ in pairs:
        if not equals:
            end(Status.USAGE, f"--env {name} has no value; write NAME=VALUE")
    return {name: value for name, _, value in pairs}


@contextmanager
def problems_named_by_option() -> Iterator[None]:
    """End the command if the server refuses the job, with the option of each problem."""
    from phalanx.cli.errors import problems_of  # noqa: PLC0415
    from phalanx.client.errors import InvalidError  # noqa: PLC0415

    try:
        yield
    except InvalidError as error:
        end(Status.USAGE, *map(_with_option, problems_of(error.info)))


def _with_option(problem: str) -> str:
    """A problem of the job, which begins with a path, with the option that was given instead."""
    path, _, message = problem.partition(" ")
    name = path.removeprefix("roles.worker.").removeprefix("resources.")
    name = re.split(r"[.\[]", name, maxsplit=1)[0]
    name = {"replicas": "gang"}.get(name, name)
    if path.startswith("array.params"):
        name = "param"
    elif path == "array.parallel":
        name = "parallel"
    return f"--{name.replace('_', '-')} {message}" if name in JOB_OPTIONS else problem


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job that were given as options, in the form of `Client.submit`."""
    fields = dict(given)
    resources = {name: fields.pop(name) for name in _RESOURCES if name in fields}
    memory = str(resources.get("memory", ""))
    if memory.isdecimal() and int(memory) < 2**20:
        end(Status.USAGE, f"--memory {memory} is {memory} bytes; write a unit, like {memory}Gi")
    return fields | ({"resources": resources} if resources else {})
