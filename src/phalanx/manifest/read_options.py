"""How manifests are read: what the server knows, and what the user chose to ignore."""

from typing import Any

import msgspec

from phalanx.core.time_units import MINUTE, SECOND, Micros


class ReadOptions(msgspec.Struct, frozen=True):
    """Options for reading files and objects of any dialect."""

    overrides: dict[str, Any] = {}  #: fields of jobs, which replace those of the file
    namespace: str | None = None  #: of documents that name none; None means `default`
    priority_classes: dict[str, int] = {}
    lost_after: Micros = 30 * SECOND  #: how long a silent worker is waited for
    waiting_time: Micros = 10 * MINUTE  #: of a gang of Koordinator that sets none
    #: The users that the jobs of each namespace may choose; None accepts all.
    run_as_users: dict[str, tuple[str, ...]] | None = None
    image_map: dict[str, str] = {}  #: images that are replaced by others
    timezones: frozenset[str] | None = None  #: the time zones that exist; None accepts any name
    ignore_unsupported: bool = False  #: ignore unsupported parts, with a warning
    ignore_image: bool = False  #: run commands directly on the worker
    whole_gangs: bool = False  #: refuse a gang that is not complete in one file
