"""Serving a gang or group in a pass: start it, evict others for it, gather places, or explain."""
