"""The process of a worker, from its first line; what it does then is in `jobs`."""

import signal
import sys
from multiprocessing.connection import Connection

from nefl.collecting import collect_seldom
from nefl.engines.processes import end_with_starter


def main() -> None:
    """Serve jobs until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's business
    end_with_starter()
    collect_seldom()
    from nefl.engines.jobs import serve  # now: it loads torch

    serve(Connection(int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
