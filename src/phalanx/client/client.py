"""`phalanx.Client`: the operations of the API as calls that block."""

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from phalanx.client import settings
from phalanx.client.blocking_http import BlockingHttp
from phalanx.client.operations import Operations
from phalanx.client.transport import OnWait

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class _Method(Protocol[P, T_co]):
    """A method with these parameters, bound to a client."""

    def __get__(self, client: Any, kind: Any = None) -> Callable[P, T_co]: ...


def blocking(
    operation: Callable[Concatenate[Operations, P], Coroutine[Any, Any, T]],
) -> _Method[P, T]:
    """The operation as a method that returns its result."""

    @wraps(operation)
    def call(client: "Client", *args: P.args, **kwargs: P.kwargs) -> T:
        return _result(operation(client._operations, *args, **kwargs))  # noqa: SLF001

    return cast("_Method[P, T]", call)


def streaming(
    operation: Callable[Concatenate[Operations, P], AsyncGenerator[T, None]],
) -> _Method[P, Iterator[T]]:
    """The operation as a method that returns an iterator."""

    @wraps(operation)
    def call(client: "Client", *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        values = operation(client._operations, *args, **kwargs)  # noqa: SLF001
        try:
            while True:
                try:
                    value = _result(anext(values))
                except StopAsyncIteration:
                    return
                yield value
        finally:
            _result(values.aclose())

    return cast("_Method[P, Iterator[T]]", call)


def _result(operation: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that never suspends, because its transport blocks."""
    try:
        operation.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("bug: an operation suspended on a transport that blocks")


class Client:
    """A connection to the servers of one cluster.

    Without `servers` and `token`, they are read from the environment or the configuration file.
    Given several servers, the client finds the leader. `fingerprint` is that of the servers'
    certificate authority, of which no other is trusted then. `namespace` is the one of jobs, crons
    and secrets that name none. `timeout_s` limits one response; `patience_s` limits how long to
    look for a server that leads. A change whose outcome is unknown is repeated for at least 30 s.
    Threads may share a client, but not one of its streams.
    """

    def __init__(  # noqa: PLR0913
        self,
        servers: str | Iterable[str] | None = None,
        token: str | None = None,
        *,
        fingerprint: str | None = None,
        namespace: str | None = None,
        timeout_s: float = 30.0,
        patience_s: float = 30.0,
    ) -> None:
        """Raises ValueError if a server is not a URL, or the configuration file is invalid."""
        loaded = settings.load(servers, token, fingerprint=fingerprint, namespace=namespace)
        self._operations = Operations(
            loaded, BlockingHttp(), timeout_s=timeout_s, patience_s=patience_s
        )
        self.servers = loaded.servers

    def __repr__(self) -> str:
        return f"Client({', '.join(map(repr, self.servers))})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        _result(self._operations.close())

    def await_takeover(self, seconds: float, on_wait: OnWait) -> None:
        """From now on, wait at least so long while a standby answers and no server leads. `on_wait`
        is called once for each request that waits, with whether it waits for a standby."""
        self._operations.await_takeover(seconds, on_wait)

    @property
    def silent_s(self) -> float:
        """For how long no server has served a request; 0 if the last one was served."""
        return self._operations.silent_s

    @property
    def patience_s(self) -> float:
        return self._operations.patience_s

    @patience_s.setter
    def patience_s(self, seconds: float) -> None:
        self._operations.patience_s = seconds

    # The caller

    whoami = blocking(Operations.whoami)
    default_namespace = blocking(Operations.default_namespace)
    authorities = blocking(Operations.authorities)
    leader_and_standbys = blocking(Operations.leader_and_standbys)

    # Submitting

    submit = blocking(Operations.submit)
    submit_all = blocking(Operations.submit_all)
    submit_file = blocking(Operations.submit_file)
    plan = blocking(Operations.plan)

    # Jobs

    jobs = streaming(Operations.jobs)
    find = blocking(Operations.find)
    get = blocking(Operations.get)
    elements = streaming(Operations.elements)
    tasks = blocking(Operations.tasks)
    progress = blocking(Operations.progress)
    why = blocking(Operations.why)
    watch = streaming(Operations.watch)
    wait = blocking(Operations.wait)
    events = streaming(Operations.events)
    stream = streaming(Operations.stream)
    logs = streaming(Operations.logs)
    cancel = blocking(Operations.cancel)
    hold = blocking(Operations.hold)
    release = blocking(Operations.release)
    requeue = blocking(Operations.requeue)
    retry = blocking(Operations.retry)
    set_priority = blocking(Operations.set_priority)

    # Workers

    workers = blocking(Operations.workers)
    cordon = blocking(Operations.cordon)
    uncordon = blocking(Operations.uncordon)
    drain = blocking(Operations.drain)
    remove_worker = blocking(Operations.remove_worker)

    # Queues

    queues = blocking(Operations.queues)
    queue = blocking(Operations.queue)
    set_queue = blocking(Operations.set_queue)
    apply_queues = blocking(Operations.apply_queues)
    delete_queue = blocking(Operations.delete_queue)
    stop_queue = blocking(Operations.stop_queue)
    start_queue = blocking(Operations.start_queue)

    # Crons

    schedule = blocking(Operations.schedule)
    crons = blocking(Operations.crons)
    cron = blocking(Operations.cron)
    pause_cron = blocking(Operations.pause_cron)
    resume_cron = blocking(Operations.resume_cron)
    run_cron = blocking(Operations.run_cron)
    delete_cron = blocking(Operations.delete_cron)

    # Tokens

    tokens = blocking(Operations.tokens)
    create_token = blocking(Operations.create_token)
    rotate_token = blocking(Operations.rotate_token)
    revoke_token = blocking(Operations.revoke_token)

    # Secrets

    secrets = blocking(Operations.secrets)
    set_secret = blocking(Operations.set_secret)
    remove_secret = blocking(Operations.remove_secret)

    # Policies

    policies = blocking(Operations.policies)
    apply_policies = blocking(Operations.apply_policies)
    check_policies = blocking(Operations.check_policies)
    test_policies = blocking(Operations.test_policies)

    # Audit

    audit = streaming(Operations.audit)

    # Cost

    cost = blocking(Operations.cost)
