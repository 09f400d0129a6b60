"""`python -m cpr_wrap` is `cpr-wrap`; `torchrun -m cpr_wrap` starts it on several processes."""

from __future__ import annotations

from cpr_wrap.cli import main

main()
