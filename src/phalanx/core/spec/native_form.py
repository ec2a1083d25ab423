"""Jobs and queues in the native form, as a user writes them.

`validation.job_spec` reads the result back as an equal specification.
"""

from phalanx.core.model import Queue
from phalanx.core.spec.fields import write_fields
from phalanx.core.spec.job import NEEDS_AGENT, NEEDS_RUNTIME, NEEDS_USERS, JobSpec, Role
from phalanx.core.spec.schema import JOB_FIELDS, QUEUE_FIELDS, ROLE_FIELDS
from phalanx.core.spec.validation import default_partial_completion


def native(spec: JobSpec) -> dict[str, object]:
    """A job as plain data, without the fields that have their default."""
    written = write_fields(spec, JOB_FIELDS)
    is_over_all = spec.min_available != sum(role.min for role in spec.roles)
    if not is_over_all:
        del written["min_available"]
    default = default_partial_completion(spec.restart, spec.checkpoint)
    if spec.on_partial_completion is default:
        del written["on_partial_completion"]
    if spec.priority_class is not None:
        written.pop("priority", None)
    has_user = spec.run_as_user is not None
    written["roles"] = {
        role.name: _role(role, is_over_all=is_over_all, has_user=has_user) for role in spec.roles
    }
    return written


def native_queue(queue: Queue) -> dict[str, object]:
    return {"kind": "Queue", "name": queue.name} | write_fields(queue, QUEUE_FIELDS)


def _role(role: Role, *, is_over_all: bool, has_user: bool) -> dict[str, object]:
    written = write_fields(role, ROLE_FIELDS)
    implied = (NEEDS_RUNTIME if role.image is not None else {}) | (NEEDS_USERS if has_user else {})
    implied |= NEEDS_AGENT if role.secrets else {}
    selector = {k: v for k, v in role.node_selector.items() if implied.get(k) != v}
    written.pop("node_selector", None)
    written |= {"node_selector": selector} if selector else {}
    if role.min == (0 if is_over_all else role.replicas):
        del written["min"]
    return written
