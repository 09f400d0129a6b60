"""What is kept of finished blocks."""

from __future__ import annotations

import torch

from cpr_wrap.attacks.ensemble import Quick
from cpr_wrap.engine.evaluate import Work, evaluate_block
from cpr_wrap.engine.images import Images
from cpr_wrap.engine.precision import Precision
from cpr_wrap.evaluation.assemble import finish, points_of
from cpr_wrap.objective import Goal
from tests.evaluation.test_curve import make


def finished():
    model, x, y = make("confidence", count=5)
    work = Work(
        model=model,
        stages=Quick().stages(model.rule, 0.2),
        eps=0.2,
        norm="Linf",
        seed=0,
        batch_size=8,
        precision=Precision(),
    )
    index = torch.arange(5)
    blocks = [
        evaluate_block(work, Images(x=x[rows], y=y[rows], index=index[rows]))
        for rows in (slice(0, 3), slice(3, 5))
    ]
    return blocks, [finish(*block) for block in blocks]


def test_every_point_is_held_once():
    _, done = finished()
    before = [block.found[Goal.REJECTED].point.clone() for block in done]
    points = points_of(done)
    assert torch.equal(points.rejected, torch.cat(before))
    for goal, joined in ((Goal.ACCEPTED_MISTAKE, points.outer), (Goal.REJECTED, points.rejected)):
        whole = joined.untyped_storage().data_ptr()
        for block in done:
            assert block.found[goal].point.untyped_storage().data_ptr() == whole


def test_of_the_boundary_only_distances_are_kept():
    blocks, done = finished()
    for (block, _), finished_block in zip(blocks, done, strict=True):
        found, kept = block.found[Goal.MISTAKE], finished_block.found[Goal.MISTAKE]
        assert kept.point.untyped_storage().nbytes() == 0
        assert torch.equal(kept.distance, found.distance)
        assert len(found.point) == len(block)  # the block itself is as it was
