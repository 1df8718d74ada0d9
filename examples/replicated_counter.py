"""A counter shared by any number of programs, in a table with replicas.

    rk table create counts --replicas 3
    python examples/replicated_counter.py --store 127.0.0.1:21801 counts visitors 1

`compare_and_set` changes the row only if the row has not changed since it was read. The client repeats a request whose
reply was lost under the same number, and the tablet carries it out once. So every addition counts once, even while
servers die. Only a call that ends at its deadline has an unknown outcome, and the program prints that.
"""

from __future__ import annotations

import argparse
import sys

from regionserver.client import DataError, RegionClient, connect


def add(client: RegionClient, table: str, key: str, amount: int) -> int:
    """Add `amount` to the counter and return the sum."""
    while True:
        value = client.get(table, key)
        total = int(value or b"0") + amount
        if client.compare_and_set(table, key, value, b"%d" % total):
            return total


def main() -> int:
    """Run the command line above."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True)
    parser.add_argument("table")
    parser.add_argument("key")
    parser.add_argument("amount", type=int, nargs="?", default=1)
    given = parser.parse_args()
    try:
        with connect(given.store) as client:
            print(add(client, given.table, given.key, given.amount))
    except DataError as error:
        maybe = " (the addition may have been made)" if error.may_have_been_done else ""
        print(f"replicated_counter: {error}{maybe}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
