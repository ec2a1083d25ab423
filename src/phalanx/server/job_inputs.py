"""What a job needs from outside before it starts: values of secrets, digests and signatures of
images, and credentials for their registries."""

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from phalanx.core.errors import Invalid, Problem
from phalanx.core.spec.job import JobSpec
from phalanx.core.spec.secret_references import SecretKey
from phalanx.core.warnings import UncheckedImage
from phalanx.engine.gang_inputs import (
    ImagePreview,
    InputMissing,
    InputUnavailable,
    ResolvedInputs,
)
from phalanx.policy.authorizer import Authorizer
from phalanx.registry.image_pins import LOCAL, ImagePins
from phalanx.registry.image_reference import ImageReference
from phalanx.registry.logins import RegistryLogin, read_logins, without_login, written_logins
from phalanx.registry.registry_client import (
    AccessRefused,
    NotInRegistry,
    RegistryClient,
    RegistryError,
)
from phalanx.registry.signatures import SignatureRefused, SignatureUnknown, verify_image
from phalanx.secrets.providers import SecretResolver

#: How long the images of a submitted job may take to be pinned, all together.
_PIN_S = 60.0
#: How long the rest of what a plan says about the images may take, all together.
_PREVIEW_S = 10.0
#: The key of a secret with the credentials of several registries, as Kubernetes has it.
_DOCKER_CONFIG = ".dockerconfigjson"


class _Logins(NamedTuple):
    """The logins of a job's pull secrets."""

    by_registry: dict[str, RegistryLogin]
    missing: tuple[str, ...]  #: pull secrets that the namespace does not have

    def hint(self, error: RegistryError, namespace: str) -> str:
        """The error, and what to do if its reason could be that there is no login."""
        if self.missing and isinstance(error, AccessRefused | NotInRegistry):
            return f"{error}; {without_login(self.missing, namespace)}"
        if not self.by_registry and isinstance(error, AccessRefused):
            return f"{error}; name a secret with a login in pull_secrets"
        return str(error)


class JobInputs:
    def __init__(
        self, secrets: SecretResolver, pins: ImagePins | None, policies: Authorizer
    ) -> None:
        """Without `pins` images stay as they are."""
        self.secrets = secrets
        self._pins = pins
        self._policies = policies

    async def resolve(self, spec: JobSpec) -> ResolvedInputs:
        """Raises InputUnavailable."""
        keys = tuple(dict.fromkeys(key for role in spec.roles for key in role.secrets))
        values = await self.secrets.resolve(spec.namespace, keys) if keys else {}
        images = dict.fromkeys(role.image for role in spec.roles if role.image is not None)
        if not images:
            return ResolvedInputs(values)
        logins = await self._logins(spec, images)
        pinned = {}
        for image in images:
            try:
                pinned[image] = await self._pin(image, logins)
            except (AccessRefused, NotInRegistry) as error:
                raise InputMissing(logins.hint(error, spec.namespace)) from None
            except RegistryError as error:
                raise InputUnavailable(str(error)) from None
        signatures = self._policies.trust.signatures(spec.namespace)
        auth = written_logins(logins.by_registry)
        return ResolvedInputs(values, pinned, signatures, auth, logins.missing)

    async def pinned(self, spec: JobSpec) -> dict[str, str]:
        """By image of a job that is submitted: the reference with its digest. Raises Invalid."""
        pinned: dict[str, str] = {}
        problems = []
        images = dict.fromkeys(role.image for role in spec.roles if role.image is not None)
        if self._pins is None or not images:
            return {}
        try:
            logins = await self._logins(spec, images)
        except InputUnavailable as error:
            raise Invalid([Problem("pull_secrets", f"cannot be read: {error}")]) from None
        until = asyncio.get_running_loop().time() + _PIN_S
        for role in spec.roles:
            if role.image is None or role.image in pinned:
                continue
            try:
                async with asyncio.timeout_at(until):
                    pinned[role.image] = await self._pin(role.image, logins)
            except TimeoutError:
                why = f"cannot be used: the registries did not answer within {_PIN_S:.0f} s"
                raise Invalid([Problem(f"roles.{role.name}.image", why)]) from None
            except RegistryError as error:
                why = logins.hint(error, spec.namespace)
                problems.append(Problem(f"roles.{role.name}.image", f"cannot be used: {why}"))
        if problems:
            raise Invalid(problems)
        return pinned

    async def preview(self, spec: JobSpec) -> ImagePreview:
        """Whether the images of a job that is planned could be used now: by what a submission would
        be refused for, and by what workers check before a start. Raises Invalid, as `pinned` does.
        """
        images = dict.fromkeys(role.image for role in spec.roles if role.image is not None)
        if not images:
            return ImagePreview()
        if self._pins is None:
            return ImagePreview(unchecked=_unchecked(images, "the setting image_pinning is off"))
        pinned = await self.pinned(spec)
        try:
            logins = await self._logins(spec, images)
        except InputUnavailable as error:
            return ImagePreview(unchecked=_unchecked(images, str(error)))
        unchecked: list[UncheckedImage] = []
        try:
            async with asyncio.timeout(_PREVIEW_S):
                for image in list(images):
                    try:
                        await self._check(pinned[image], spec.namespace, logins)
                    except (AccessRefused, NotInRegistry) as error:
                        why = logins.hint(error, spec.namespace)
                        return ImagePreview(f"image {image} cannot be used: {why}")
                    except SignatureRefused as error:
                        return ImagePreview(str(error))
                    except (RegistryError, SignatureUnknown) as error:
                        unchecked += _unchecked([image], str(error))
                    del images[image]
        except TimeoutError:
            unchecked += _unchecked(images, f"registries did not answer within {_PREVIEW_S:.0f} s")
        return ImagePreview(unchecked=tuple(unchecked))

    async def _check(self, image: str, namespace: str, logins: _Logins) -> None:
        """Raises RegistryError, SignatureRefused, SignatureUnknown."""
        reference = ImageReference.parse(image)
        login = logins.by_registry.get(reference.registry)
        if reference.registry != LOCAL:
            async with RegistryClient(reference, login) as registry:
                await registry.manifest(reference.digest or reference.tag or "latest")
        required = self._policies.trust.signatures(namespace)
        await verify_image(image, required, written_logins(logins.by_registry))

    async def _pin(self, image: str, logins: _Logins) -> str:
        if self._pins is None:
            return image
        registry = ImageReference.parse(image).registry
        return await self._pins.pin(image, logins.by_registry.get(registry))

    async def _logins(self, spec: JobSpec, images: Iterable[str]) -> _Logins:
        """The credentials of the job's namespace. A pull secret that does not exist is only noted:
        the registry may need none. Raises InputUnavailable."""
        names = dict.fromkeys(name for role in spec.roles for name in role.pull_secrets)
        registries = {ImageReference.parse(image).registry for image in images}
        logins: dict[str, RegistryLogin] = {}
        missing = []
        for name in names:
            wanted = [SecretKey(name, key) for key in ("username", "password", _DOCKER_CONFIG)]
            found = await self.secrets.find(spec.namespace, wanted)
            username, password, config = (found.get(key) for key in wanted)
            if config is None and (username is None or password is None):
                missing.append(name)
            if username is not None and password is not None:
                login = RegistryLogin(username, password)
                logins |= {registry: login for registry in registries if registry not in logins}
            if config is not None:
                try:
                    logins |= read_logins(config)
                except ValueError as error:
                    why = f"the key {_DOCKER_CONFIG} of secret {name} cannot be read: {error}"
                    raise InputMissing(why) from None
        return _Logins(logins, tuple(missing))


def _unchecked(images: Iterable[str], why: str) -> tuple[UncheckedImage, ...]:
    return tuple(UncheckedImage(image, why) for image in images)
