"""Leases, by which one of several schedulers leads."""

from datetime import datetime

from phalanx.kube.objects.metadata import ApiObject, ApiStruct


class LeaseSpec(ApiStruct, frozen=True):
    holder_identity: str = ""  #: empty if the last holder gave the lease back
    lease_duration_seconds: int = 0
    lease_transitions: int = 0
    acquire_time: datetime | None = None
    renew_time: datetime | None = None


class Lease(ApiObject, frozen=True):
    spec: LeaseSpec = LeaseSpec()
