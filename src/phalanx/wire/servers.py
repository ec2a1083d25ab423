"""Views of the servers of a cluster."""

import msgspec


class StandbyView(msgspec.Struct, frozen=True):
    name: str
    url: str
    silent_s: int | None  #: for how long nothing was heard from it; null if it was heard in time


class LeaderView(msgspec.Struct, frozen=True):
    name: str
    url: str
    term: int


class ServersView(msgspec.Struct, frozen=True):
    leader: LeaderView | None  #: null while no server leads
    standbys: tuple[StandbyView, ...]
