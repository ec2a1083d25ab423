"""`python -m benchmarks [core] [planner] [forecast] [costly] [stores] [server] [cluster]
[containers] [dashboard] [STORE]`.

Without arguments, all of these run. The name of a store runs the benchmarks of that store, alone
and under a server. `planner-profile` profiles the first plan. `dashboard-memory` takes 10 minutes.
`kubernetes` needs a control plane, which is built first; `kubernetes-full` has 5,000 nodes and
50,000 pods in its last part.
"""

import asyncio
import sys
from functools import partial

from benchmarks import (
    cluster,
    containers,
    core,
    costly,
    dashboard,
    forecast,
    kubernetes,
    planner,
    server,
    stores,
)


def main(names: list[str]) -> None:
    alone = ("core", "planner", "forecast", "costly", "dashboard")
    on_demand = ("planner-profile", "dashboard-memory", "kubernetes", "kubernetes-full")
    known = (*alone, *on_demand, "stores", "server", "cluster", "containers", *stores.STORES)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"there is no benchmark {unknown[0]}; choose from {', '.join(known)}")
    wanted = names or [*alone, "stores", "server", "cluster", "containers"]
    for name, benchmark in (
        ("core", core.run),
        ("planner", planner.run),
        ("planner-profile", planner.profile),
        ("forecast", forecast.run),
        ("costly", costly.run),
        ("dashboard", dashboard.run),
        ("dashboard-memory", dashboard.memory),
        ("kubernetes", kubernetes.run),
        ("kubernetes-full", partial(kubernetes.run, full=True)),
    ):
        if name in wanted:
            benchmark()
    for name, run in (("stores", stores.run), ("server", server.run)):
        chosen = [store for store in stores.STORES if store in wanted or name in wanted]
        if chosen:
            print(f"\n{name.capitalize()}")
            asyncio.run(run(chosen))
    if "cluster" in wanted:
        cluster.run()
    if "containers" in wanted:
        containers.run()


if __name__ == "__main__":
    main(sys.argv[1:])
