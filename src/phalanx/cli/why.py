"""`phalanx why`: why a job does not run, and what would make it start."""

from typing import TYPE_CHECKING

from phalanx.cli import formatting
from phalanx.cli.completion import Job
from phalanx.cli.connection import with_client
from phalanx.cli.output import Json, print_json
from phalanx.cli.visible_text import say

if TYPE_CHECKING:
    from phalanx.client import Client
    from phalanx.wire.plan import QueueDueView, Why


@with_client
def why(client: "Client", *, reference: Job, as_json: Json = False) -> None:
    """Explain why a job is pending, stopping or ended, and what to do."""
    job = client.find(reference)
    answer = client.why(job)
    if as_json:
        print_json(answer)
        return
    detail = client.get(job)
    names = formatting.names_of(detail.after)
    say(f"{answer.job}: {formatting.named(answer.message, names)}")
    if answer.starts_at is not None:
        say(f"reserved start: about {formatting.local_clock(answer.starts_at)}")
    if answer.rule is not None:
        say(f"rule: {answer.rule}")
    if answer.blocked is not None:
        say(f"blocked: {answer.blocked.message}")
    if answer.remedy is not None:
        say(f"remedy: {answer.remedy}")
    for alternative in answer.alternatives:
        say(f"alternative: {alternative.message}")
    _print_order(answer)


def _share(due: "QueueDueView") -> str:
    """The part of its share that a queue uses."""
    if due.used_share is None:
        return "deserves nothing of a resource that it uses or needs, which counts as 100%"
    counted = f"{due.counted_share:.0%}"
    used = f"{due.used_share:.0%}"
    return f"uses {used} of its share" + ("" if used == counted else f", which counts as {counted}")


def _print_order(answer: "Why") -> None:
    """When the job is due, by the share of its queue and of each queue above it, and when it is
    overdue."""
    for due in answer.due:
        say(f"order: due {formatting.utc_minute(due.at)}; queue {due.queue} {_share(due)}")
    if answer.overdue_at is not None:
        at = formatting.utc_minute(answer.overdue_at)
        if formatting.parse_time(answer.overdue_at) <= formatting.now():
            say(f"order: before all queues since {at} (max_wait)")
        else:
            say(f"order: before all queues from {at} on (max_wait)")
