"""Exit 0 when a daemon's admin port says that it is healthy: `python health.py HOST:PORT`."""

import sys
import urllib.request

try:
    with urllib.request.urlopen(f"http://{sys.argv[1]}/health", timeout=2) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}")
