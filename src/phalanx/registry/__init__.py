"""Container registries: digests of tags, and signatures of images."""
