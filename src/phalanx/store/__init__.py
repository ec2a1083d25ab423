"""Where rows are kept: the protocol and its three backends."""
