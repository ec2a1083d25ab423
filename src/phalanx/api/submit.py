"""Submit one job, a file of jobs and queues, or a batch."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import msgspec
from litestar import Request, Response, post
from litestar.openapi.spec import Schema

from phalanx.api import manifests, request_body
from phalanx.api.admission import admit_and_pin, check_managed
from phalanx.api.audit import note_submitted
from phalanx.api.auth import ADMINS, USERS, principal_of
from phalanx.api.crons import cron_view
from phalanx.api.errors import info_of, wrong
from phalanx.api.idempotency import IdempotencyKey, request_key
from phalanx.api.manifests import (
    DefaultNamespace,
    IgnoreImage,
    IgnoreUnsupported,
    Override,
    read_options,
)
from phalanx.api.plain_views import plain_submitted_view
from phalanx.api.services import services_of
from phalanx.api.views import submitted_view, warning_views
from phalanx.core.errors import CoreError, Invalid
from phalanx.core.model import GangMembers, Job
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.validation import in_short_form
from phalanx.engine.idempotency import RequestKey
from phalanx.engine.submissions import Outcome, Scheduled, Submission
from phalanx.identity.principal import Forbidden, Principal, check_role
from phalanx.manifest.bundle import Bundle
from phalanx.wire.crons import CronView
from phalanx.wire.errors import ErrorInfo
from phalanx.wire.jobs import BatchItem, BatchReply, SubmitReply
from phalanx.wire.plain import PlainSubmitReply

SHORT_EXAMPLE = {"command": "python train.py", "gang_size": 4, "resources": {"vram_mb": 8192}}
NATIVE_EXAMPLE = {
    "name": "pretrain-7b",
    "roles": {
        "worker": {"replicas": 8, "command": ["python", "train.py"], "resources": {"gpu": 1}}
    },
    "checkpoint": "each",
}
_STRING, _INTEGER = Schema(type="string"), Schema(type="integer")  # type: ignore[arg-type]
_OBJECT = Schema(type="object")  # type: ignore[arg-type]
_JOB = Schema(
    type="object",  # type: ignore[arg-type]
    properties={
        "name": _STRING,
        "namespace": _STRING,
        "queue": _STRING,
        "priority": _INTEGER,
        "roles": _OBJECT,
        "command": _STRING,
        "gang_size": _INTEGER,
        "resources": _OBJECT,
    },
    description="A job in the native form (`roles`) or the short form (`command`).",
)
JOB_BODY = request_body.documented(
    {}, NATIVE_EXAMPLE, SHORT_EXAMPLE, media=("application/json", "application/yaml"), schema=_JOB
)
_BATCH_BODY = request_body.documented(
    {},
    [SHORT_EXAMPLE, NATIVE_EXAMPLE],
    media=("application/json", "application/yaml"),
    schema=Schema(type="array", items=_JOB),  # type: ignore[arg-type]
)


class _Read(NamedTuple):
    spec: JobSpec
    is_short: bool
    part: GangMembers | None


@post(
    "/jobs",
    operation_class=JOB_BODY,
    opt={"allowed": USERS, "action": "submit", "decided_by": "SubmitJob"},
    summary="Submit a job or a file of jobs",
)
async def submit(  # noqa: PLR0913, PLR0917
    request: Request[Any, Any, Any],
    key: IdempotencyKey = None,
    ignore_image: IgnoreImage = False,
    ignore_unsupported: IgnoreUnsupported = False,
    override: Override = None,
    namespace: DefaultNamespace = None,
) -> Response[SubmitReply | PlainSubmitReply | CronView | BatchReply]:
    """A job with a schedule creates or replaces a cron.

    A file with several jobs, or with queues, is accepted or refused as a whole.
    """
    services, principal = services_of(request), principal_of(request)
    settings = read_options(
        services,
        ignore_image=ignore_image,
        ignore_unsupported=ignore_unsupported,
        override=override,
        namespace=namespace,
    )
    file = await manifests.read(request, settings)
    submissions = []
    for spec in file.jobs:
        with _own_paths(is_short=file.is_short):
            submissions.append(await admit_and_pin(request, spec, file.part(spec)))
    if file.queues:
        check_role(principal, ADMINS)
        await check_managed(request, "queue", *(queue.name for queue in file.queues))
    checked = request_key(request, key, ignore_image, ignore_unsupported)
    noted = partial(note_submitted, request)
    if len(file.jobs) != 1 or file.queues:
        return await _submit_together(request, file, submissions, checked)
    [outcome] = await services.submissions.submit(submissions, checked, noted)
    if isinstance(outcome, CoreError):
        with _own_paths(is_short=file.is_short):
            raise outcome
    status_code = 201 if outcome.is_new else 200
    warned = (*outcome.warnings, *file.warnings)
    if isinstance(outcome, Scheduled):
        return Response(
            cron_view(outcome.cron, warned),
            status_code=status_code,
            headers={"Location": f"/crons/{outcome.cron.key}"},
        )
    return Response(
        _submitted(outcome.job, principal, warned, is_short=file.is_short),
        status_code=status_code,
        headers={"Location": f"/jobs/{outcome.job.id}"},
    )


async def _submit_together(
    request: Request[Any, Any, Any],
    file: Bundle,
    submissions: list[Submission],
    key: RequestKey | None,
) -> Response[SubmitReply | PlainSubmitReply | CronView | BatchReply]:
    principal = principal_of(request)
    accepted = await services_of(request).submissions.submit_together(
        submissions, file.queues, key, partial(note_submitted, request)
    )
    reply = BatchReply(
        accepted=len(accepted),
        refused=0,
        results=tuple(_batch_item(one, principal, is_short=False) for one in accepted),
        queues=tuple(queue.name for queue in file.queues),
        warnings=warning_views(file.warnings),
    )
    is_new = not accepted or any(one.is_new for one in accepted)
    return Response(reply, status_code=201 if is_new else 200)


@post(
    "/jobs:batch",
    operation_class=_BATCH_BODY,
    opt={"allowed": USERS, "action": "submit", "decided_by": "SubmitJob"},
    status_code=200,
    summary="Submit many jobs, each accepted or refused on its own",
)
async def submit_batch(
    request: Request[Any, Any, Any],
    key: IdempotencyKey = None,
    namespace: DefaultNamespace = None,
) -> BatchReply:
    """A list of jobs, or several YAML documents."""
    services, principal = services_of(request), principal_of(request)
    files = await manifests.read_batch(request, read_options(services, namespace=namespace))
    checked = request_key(request, key)
    items: list[_Read | ErrorInfo] = []
    submissions = []
    for file in files:
        try:
            read = _only_job(file)
            with _own_paths(is_short=read.is_short):
                submission = await admit_and_pin(request, read.spec, read.part)
        except Invalid as error:
            items.append(info_of(error))
            continue
        except Forbidden as error:
            items.append(ErrorInfo("forbidden", str(error)))
            continue
        items.append(read)
        submissions.append(submission)
    outcomes = iter(
        await services.submissions.submit(submissions, checked, partial(note_submitted, request))
    )
    results = [
        BatchItem(error=item)
        if isinstance(item, ErrorInfo)
        else _batch_item(next(outcomes), principal, is_short=item.is_short)
        for item in items
    ]
    refused = sum(result.error is not None for result in results)
    return BatchReply(len(results) - refused, refused, tuple(results))


def _batch_item(outcome: Outcome, principal: Principal, *, is_short: bool) -> BatchItem:
    if isinstance(outcome, Invalid) and is_short:
        outcome = in_short_form(outcome)
    if isinstance(outcome, CoreError):
        return BatchItem(error=info_of(outcome))
    if isinstance(outcome, Scheduled):
        return BatchItem(cron=cron_view(outcome.cron, outcome.warnings))
    job = _submitted(outcome.job, principal, outcome.warnings, is_short=is_short)
    return BatchItem(job=job)


def _submitted(
    job: Job, principal: Principal, warnings: Iterable[msgspec.Struct], *, is_short: bool
) -> SubmitReply:
    """The short form is the plain protocol's, and is answered with its names."""
    view = plain_submitted_view if is_short else submitted_view
    return view(job, principal, warnings)


@contextmanager
def _own_paths(*, is_short: bool) -> Iterator[None]:
    """Let the problems of a job in the short form name its own fields."""
    try:
        yield
    except Invalid as error:
        if is_short:
            raise in_short_form(error) from None
        raise


def _only_job(file: Bundle | Invalid) -> _Read:
    """The one job of a document. Raises Invalid."""
    if isinstance(file, Invalid):
        raise file
    if len(file.jobs) != 1:
        raise wrong("", "a document in a batch is one job; submit a file with queues to /jobs")
    [spec] = file.jobs
    return _Read(spec, is_short=file.is_short, part=file.part(spec))


ROUTES = [submit, submit_batch]
