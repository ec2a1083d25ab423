"""The commands by topic. The module of a command is imported when the command is used."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import typer
import typer.main

from phalanx.cli.help_pages import HelpCommand, HelpGroup

#: The topics and their commands, in the order in which `--help` lists them. A command is given by
#: its module in this package and its name there: a function or, for a group, a `typer.Typer`.
TOPICS: dict[str, dict[str, str]] = {
    "Run a cluster": {
        "up": "up:up",
        "serve": "serve:serve",
        "worker": "worker:app",
        "kube": "kube:app",
    },
    "Submit and follow jobs": {
        "login": "login:login",
        "logout": "login:logout",
        "whoami": "whoami:whoami",
        "submit": "submit:submit",
        "jobs": "jobs:jobs",
        "job": "job:job",
        "tasks": "tasks:tasks",
        "progress": "progress:progress",
        "logs": "logs:logs",
        "events": "events:events",
        "why": "why:why",
        "wait": "wait:wait",
        "status": "status:status",
        "top": "top:top",
        "help": "help:help_command",
    },
    "Change jobs": {
        "cancel": "job_actions:cancel",
        "retry": "job_actions:retry",
        "requeue": "job_actions:requeue",
        "hold": "job_actions:hold",
        "release": "job_actions:release",
        "priority": "job_actions:priority",
    },
    "Run jobs on a schedule": {
        "crons": "crons:crons",
        "cron": "crons:app",
    },
    "Manage workers and queues": {
        "workers": "workers:workers",
        "cordon": "workers:cordon",
        "uncordon": "workers:uncordon",
        "drain": "workers:drain",
        "queues": "queues:queues",
        "queue": "queues:app",
        "apply": "apply:apply",
    },
    "Plan and measure": {
        "plan": "plan:plan",
        "simulate": "simulate:simulate",
        "cost": "cost:cost",
        "convert": "convert:convert",
    },
    "Administer a server": {
        "config": "config:config",
        "token": "token:app",
        "secret": "secret:app",
        "policy": "policy:app",
        "audit": "audit:audit",
        "ca": "ca:app",
    },
}


class Commands(Mapping[str, Any]):
    """The commands by name, each loaded at its first use."""

    def __init__(self) -> None:
        self._topics = {name: topic for topic, commands in TOPICS.items() for name in commands}
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            topic = self._topics[name]
            self._loaded[name] = _load(name, topic, TOPICS[topic][name])
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


def _load(name: str, topic: str, place: str) -> Any:
    """The command at this place, as the parser wants it."""
    module, _, attribute = place.partition(":")
    found = getattr(import_module(f"phalanx.cli.{module}"), attribute)
    parent = typer.Typer(add_completion=False, callback=lambda: None)
    if isinstance(found, typer.Typer):
        parent.add_typer(found, name=name, rich_help_panel=topic, cls=HelpGroup)
    else:
        # A script or a command is followed by its own options.
        settings = {"allow_interspersed_args": False} if name == "submit" else None
        parent.command(name, rich_help_panel=topic, cls=HelpCommand, context_settings=settings)(
            found
        )
    group: Any = typer.main.get_command(parent)
    return group.commands[name]
