"""`python -m benchmarks [core] [stores] [server] [memory] [sqlite] [postgres]`; all without a name.

The name of a store measures it both by itself and under a server.
"""

import asyncio
import sys

from benchmarks import api, core, stores


def main(names: list[str]) -> None:
    known = ("core", "stores", "server", *stores.STORES)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]} cannot be measured; there are: {', '.join(known)}")
    wanted = names or ["core", "stores", "server"]
    if "core" in wanted:
        core.run()
    for what, run in (("stores", stores.run), ("server", api.run)):
        named = [name for name in stores.STORES if name in wanted or what in wanted]
        if named:
            print(f"\nThe {what}")
            asyncio.run(run(named))


if __name__ == "__main__":
    main(sys.argv[1:])
