"""Settings for the whole suite: a property is judged by its result, never by its duration."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "busy-machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy-machine")
