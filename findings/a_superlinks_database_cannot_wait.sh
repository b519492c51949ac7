#!/usr/bin/env bash
# flwr 1.42.0: a SuperLink with --database FILE gives up any request that waits five seconds for SQLite.
#
# Expected: models and heartbeats do not stand in each other's way, or the time to wait can be set (SQLAlchemy's
# URL sqlite:///FILE?timeout=60 sets it for sqlite3).
# Seen: models on their way, nodes, tasks and heartbeats share one file, and a "PRAGMA busy_timeout = 5000" after
# connecting overrides the URL. While the pieces of a large model are written, heartbeats and polls fail with
# "database is locked": three SuperNodes and a model of 166 MB ended in the first round on a busy machine. Here
# another connection holds the file for eight seconds, as long as such a write takes there.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "flwr==1.42.0"
cat > "$here/look.py" <<'PY'
import sqlite3
import sys
import threading

from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

path = sys.argv[1]
_, factory = get_objectstore_linkstate_factories(f"sqlite:///{path}?timeout=60", get_federation_manager())
state = factory.state()
writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
writer.execute("BEGIN IMMEDIATE")
threading.Timer(8.0, lambda: writer.execute("ROLLBACK")).start()
try:
    state.create_node("", "name", b"key", 30.0)
    print("served")
except Exception as error:
    print(str(error).splitlines()[0])
PY
FLWR_TELEMETRY_ENABLED=0 "$here/venv/bin/python" "$here/look.py" "$here/link.db" 2>/dev/null | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
(sqlite3.OperationalError) database is locked
SEEN
echo "flwr 1.42.0 does as written above"
