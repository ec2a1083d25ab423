"""`python -m benchmarks [core] [planner] [stores] [server] [cluster] [memory] [sqlite] [postgres]`.

Without a name, all. The name of a store measures it both by itself and under a server;
`planner-profile` shows where the time of a plan goes.
"""

import asyncio
import sys

from benchmarks import api, cluster, core, planner, stores


def main(names: list[str]) -> None:
    known = ("core", "planner", "planner-profile", "stores", "server", "cluster", *stores.STORES)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]} cannot be measured; there are: {', '.join(known)}")
    wanted = names or ["core", "planner", "stores", "server", "cluster"]
    for what, measure in (
        ("core", core.run),
        ("planner", planner.run),
        ("planner-profile", planner.profile),
    ):
        if what in wanted:
            measure()
    for what, run in (("stores", stores.run), ("server", api.run)):
        named = [name for name in stores.STORES if name in wanted or what in wanted]
        if named:
            print(f"\nThe {what}")
            asyncio.run(run(named))
    if "cluster" in wanted:
        cluster.run()


if __name__ == "__main__":
    main(sys.argv[1:])
