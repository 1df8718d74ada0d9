"""Exit 0 when a daemon takes part: `python health.py HOST:PORT [PATH]` asks its admin port, for /ready by default."""

import sys
import urllib.request

path = sys.argv[2] if len(sys.argv) > 2 else "/ready"
try:
    with urllib.request.urlopen(f"http://{sys.argv[1]}{path}", timeout=2) as answer:
        sys.exit(0 if answer.status == 200 else 1)
except OSError as error:
    sys.exit(f"{sys.argv[1]}{path}: {error}")
