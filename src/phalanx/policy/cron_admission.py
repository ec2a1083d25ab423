"""The admission of each run of a cron: its owner is judged again, by the policies of now."""

from msgspec.structs import replace

from phalanx.core.spec.job import JobSpec
from phalanx.engine.cron_lookups import CronVerdict
from phalanx.identity.token_registry import TokenRegistry
from phalanx.policy.authorizer import Authorizer
from phalanx.policy.trust import PolicyDenied


class CronAdmission:
    def __init__(self, tokens: TokenRegistry, authorizer: Authorizer) -> None:
        self._tokens = tokens
        self._authorizer = authorizer

    def verdict(self, spec: JobSpec, name: str) -> CronVerdict:
        """Whether the owner of that name may run the job now.

        Whether the queue admits the namespace is decided when the run is submitted.
        """
        refusal = self._tokens.refusal(spec, name)
        owner = self._tokens.owner(name)
        if refusal is not None or owner is None:
            return CronVerdict(refusal)
        try:
            # The run is a job and no change of the cron.
            policies = self._authorizer.check_job(owner, replace(spec, schedule=None), {})
        except PolicyDenied as denied:
            return CronVerdict(str(denied), denied.policies)
        return CronVerdict(policies=policies)
