#!/usr/bin/env bash
# scikit-learn 1.8.0: what dump_svmlight_file writes, load_svmlight_file reads with other columns, both by default.
#
# Expected: a table that is written as LIBSVM text and read again with n_features=4 is the same table; so is each half
# of it, one client's rows say.
# Seen: the writer counts features from 0, the reader guesses from the file where counting begins. A file in whose rows
# the first feature is 0 throughout is taken to count from 1 and all its columns move one to the left, without an
# error or a warning: of two clients of one table one is right and one is not. zero_based=True reads both.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "scikit-learn==1.8.0" "numpy<3"
cat > "$here/look.py" <<'PY'
import io
import warnings

import numpy as np
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

warnings.simplefilter("error")
CLIENTS = {"first": [[5.0, 0, 7, 0], [0, 1, 0, 2]], "second": [[0.0, 5, 0, 7], [0, 1, 2, 0]]}
for name, rows in CLIENTS.items():
    text = io.BytesIO()
    dump_svmlight_file(np.array(rows), [0, 1], text)
    for way in ({}, {"zero_based": True}):
        text.seek(0)
        x, _ = load_svmlight_file(text, n_features=4, **way)
        print(name, way or "default", x.toarray().astype(int).tolist(), (x.toarray() == rows).all())
PY
"$here/venv/bin/python" "$here/look.py" | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
first default [[5, 0, 7, 0], [0, 1, 0, 2]] True
first {'zero_based': True} [[5, 0, 7, 0], [0, 1, 0, 2]] True
second default [[5, 0, 7, 0], [1, 2, 0, 0]] False
second {'zero_based': True} [[0, 5, 0, 7], [0, 1, 2, 0]] True
SEEN
echo "scikit-learn 1.8.0 does as written above"
