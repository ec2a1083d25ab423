"""Container images on a worker: the runtime, pulls, and the containers of attempts."""
