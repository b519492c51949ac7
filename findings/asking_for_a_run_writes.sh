#!/usr/bin/env bash
# flwr 1.42.0: a SuperLink writes to its database whenever it reads the status of a run.
#
# Expected: with journal_mode=WAL, which Flower sets, readers do not wait for writers.
# Seen: get_run_status, which every request for a piece of a message begins with, first updates the table of tasks
# (to end those whose heartbeat stopped), although there is none. So each such request waits for whoever writes:
# here three seconds, as long as another connection holds the file. Of a round of twenty SuperNodes a third was this.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "flwr==1.42.0"
cat > "$here/look.py" <<'PY'
import sqlite3
import sys
import threading
import time

from flwr.superlink.config_loader import get_federation_manager, get_objectstore_linkstate_factories

path = sys.argv[1]
_, factory = get_objectstore_linkstate_factories(path, get_federation_manager())
state = factory.state()
state.get_run_status({1})
writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
reader = sqlite3.connect(path, isolation_level=None)
writer.execute("BEGIN IMMEDIATE")
threading.Timer(3.0, lambda: writer.execute("ROLLBACK")).start()


def waited(work):
    began = time.monotonic()
    work()
    return "waits" if time.monotonic() - began > 2.0 else "does not wait"


print("SELECT", waited(lambda: reader.execute("SELECT count(*) FROM node").fetchall()))
print("get_run_status", waited(lambda: state.get_run_status({1})))
PY
FLWR_TELEMETRY_ENABLED=0 "$here/venv/bin/python" "$here/look.py" "$here/link.db" 2>/dev/null | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
SELECT does not wait
get_run_status waits
SEEN
echo "flwr 1.42.0 does as written above"
