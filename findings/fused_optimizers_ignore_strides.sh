#!/usr/bin/env bash
# torch 2.13.0, CPU: torch.optim's fused=True steps in the order of memory, whatever the strides of parameter and gradient.
#
# Expected: SGD, Adam and AdamW take the same step with fused=True as with fused=False.
# Seen: where a parameter is channels_last and the gradient assigned to it is contiguous (averaged gradients that a
# server sends back, say), entries of the gradient go to other entries of the parameter, without an error. With equal
# layouts both ways agree.
set -euo pipefail
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
python3 -m venv "$here/venv"
"$here/venv/bin/pip" install --quiet "torch==2.13.0" "numpy<3"
cat > "$here/look.py" <<'PY'
import torch


def step(kind, fused, layout, shift=0.0):
    """Where a step moves a parameter of zeros under a gradient of 0, 1, 2, ..., in the order of its indices."""
    w = torch.nn.Parameter(torch.zeros(1, 2, 2, 2).contiguous(memory_format=torch.channels_last))
    w.grad = (torch.arange(8.0) - shift).reshape(1, 2, 2, 2).contiguous(memory_format=layout)
    kind([w], lr=1.0, fused=fused).step()
    return w.detach()


for layout in (torch.channels_last, torch.contiguous_format):
    moved = [[round(-v) for v in step(torch.optim.SGD, fused, layout).flatten().tolist()] for fused in (False, True)]
    print(f"SGD, gradient in {str(layout).removeprefix('torch.')}:", *moved)
for kind in (torch.optim.Adam, torch.optim.AdamW):
    plain, fused = (step(kind, way, torch.contiguous_format, 3.5) for way in (False, True))
    print(kind.__name__, "contiguous, same step:", torch.allclose(plain, fused))
PY
"$here/venv/bin/python" "$here/look.py" | tee "$here/seen"
diff "$here/seen" - <<'SEEN'
SGD, gradient in channels_last: [0, 1, 2, 3, 4, 5, 6, 7] [0, 1, 2, 3, 4, 5, 6, 7]
SGD, gradient in contiguous_format: [0, 1, 2, 3, 4, 5, 6, 7] [0, 2, 4, 6, 1, 3, 5, 7]
Adam contiguous, same step: False
AdamW contiguous, same step: False
SEEN
echo "torch 2.13.0 does as written above"
