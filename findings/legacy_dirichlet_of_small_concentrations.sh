#!/usr/bin/env bash
# numpy 2.4.6: np.random.dirichlet (and RandomState's) answers rows of NaN and of infinity for small concentrations.
#
# Expected: every draw of a Dirichlet distribution sums to 1, as np.random.default_rng().dirichlet's does.
# Seen: the old function, with which many scripts of federated learning still deal samples to clients, divides
# gamma variables that have all become 0, or nearly: at 10 clients and concentration 0.001 a few rows in ten
# thousand are NaN, at 0.0005 a few in a hundred NaN or infinite, without an error or a warning. Shares of NaN cast to
# whole numbers of samples are arbitrary. The Generator draws another way and has none.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "numpy==2.4.6"
cat > "$here/look.py" <<'PY'
import warnings

import numpy as np

warnings.simplefilter("error")  # neither function warns
for concentration in (0.01, 0.001, 0.0005):
    for name, rng in (("RandomState", np.random.RandomState(0)), ("Generator", np.random.default_rng(0))):
        shares = rng.dirichlet(np.repeat(concentration, 10), 10_000)
        nan, infinite = np.isnan(shares).any(1).sum(), np.isinf(shares).any(1).sum()
        print(f"{concentration:g} {name}: rows with NaN: {nan > 0}, rows with infinity: {infinite > 0}")
PY
"$here/venv/bin/python" "$here/look.py" | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
0.01 RandomState: rows with NaN: False, rows with infinity: False
0.01 Generator: rows with NaN: False, rows with infinity: False
0.001 RandomState: rows with NaN: True, rows with infinity: False
0.001 Generator: rows with NaN: False, rows with infinity: False
0.0005 RandomState: rows with NaN: True, rows with infinity: True
0.0005 Generator: rows with NaN: False, rows with infinity: False
SEEN
echo "numpy 2.4.6 does as written above"
