"""Jobs and queues as a YAML file in the native form, which `bundle.read` reads back as equal."""

from collections.abc import Iterable

import yaml

from phalanx.core.model import Queue
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.native_form import native, native_queue
from phalanx.manifest.yaml_scalars import resolved


class _Dumper(yaml.SafeDumper):
    """Quotes strings that YAML 1.2 reads as numbers; the library follows YAML 1.1."""

    def ignore_aliases(self, data: object) -> bool:
        return True  # write every value out

    def represent_text(self, data: str) -> yaml.ScalarNode:
        is_plain = resolved(data) == data and data.isprintable()
        return self.represent_scalar("tag:yaml.org,2002:str", data, None if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)


def native_yaml(jobs: Iterable[JobSpec], queues: Iterable[Queue] = ()) -> str:
    """The text of a file with these queues and jobs."""
    documents = [*(native_queue(queue) for queue in queues), *(native(job) for job in jobs)]
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
