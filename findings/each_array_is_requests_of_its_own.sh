#!/usr/bin/env bash
# flwr 1.42.0: what a message costs a SuperLink goes by the number of its arrays, not by its bytes.
#
# Expected: a small message is one request or a few; a model of 6 kB costs the same in one array or in a hundred.
# Seen: every array is two objects (Array and ArrayChunk) of the message's content; each object is sent, stored and
# fetched by requests of its own, each with several statements of the database. Of 1,600 float32 numbers: 4 objects
# as one array, 202 as a hundred. On a machine with two cores four SuperNodes took 47 seconds a round for the
# hundred and 5 for the one. Adapters and batch normalisation are hundreds of such arrays.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "flwr==1.42.0"
cat > "$here/look.py" <<'PY'
import numpy as np
from flwr.app import ArrayRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

numbers = np.arange(1600, dtype=np.float32)
for arrays in ([numbers], np.split(numbers, 100)):
    content = RecordDict({"arrays": ArrayRecord(list(arrays))})
    kinds = [type(x).__name__ for x in get_all_nested_objects(content).values()]
    print(len(arrays), "arrays:", {kind: kinds.count(kind) for kind in sorted(set(kinds))})
PY
FLWR_TELEMETRY_ENABLED=0 "$here/venv/bin/python" "$here/look.py" 2>/dev/null | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
1 arrays: {'Array': 1, 'ArrayChunk': 1, 'ArrayRecord': 1, 'RecordDict': 1}
100 arrays: {'Array': 100, 'ArrayChunk': 100, 'ArrayRecord': 1, 'RecordDict': 1}
SEEN
echo "flwr 1.42.0 does as written above"
