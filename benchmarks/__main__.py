"""`python -m benchmarks [core] [stores] [memory] [sqlite] [postgres]`; all of it without a name."""

import asyncio
import sys

from benchmarks import core, stores


def main(names: list[str]) -> None:
    known = ("core", "stores", *stores.STORES)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"{unknown[0]} cannot be measured; there are: {', '.join(known)}")
    wanted = names or ["core", "stores"]
    if "core" in wanted:
        core.run()
    named = [name for name in stores.STORES if name in wanted or "stores" in wanted]
    if named:
        print("\nThe stores" if "core" in wanted else "The stores")
        asyncio.run(stores.run(named))


if __name__ == "__main__":
    main(sys.argv[1:])
