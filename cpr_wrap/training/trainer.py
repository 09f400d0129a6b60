"""One training on its way: its state, its steps, and what it keeps on disk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cpr_wrap import noise
from cpr_wrap.engine import ranks
from cpr_wrap.training import checkpoint, measure
from cpr_wrap.training.data import AUGMENTATIONS, TrainingData, epoch_batches
from cpr_wrap.training.distributed import follow_leader, share, sum_gradients, total
from cpr_wrap.training.measure import EpochRecord, TrainingProgress
from cpr_wrap.training.method import AdversarialMethod, Losses, Method, in_eval_mode
from cpr_wrap.training.recipes import Recipe, describe_recipe
from cpr_wrap.zoo.checks import check_network

# Keep the uses of one seed apart.
_ATTACK, _AUGMENT, _DROPOUT = 102, 103, 104


class Autocast(nn.Module):
    """A network that computes in bfloat16 and answers in float32.

    bfloat16 has float32's range, so that gradients need no scaling, not even the attack's.
    """

    def __init__(self, network: nn.Module, device_type: str) -> None:
        super().__init__()
        self.network = network
        self.device_type = device_type

    def forward(self, x: Tensor) -> Tensor:
        """Outputs `(N, k)` in float32."""
        with torch.autocast(self.device_type, dtype=torch.bfloat16):
            outputs: Tensor = self.network(x)
        return outputs.float()


@dataclass(kw_only=True)
class Trainer:
    """One training: what it works with, see `train`, and how far it has come."""

    recipe: Recipe
    images: TrainingData
    validation: TrainingData | None
    network: nn.Module
    device: torch.device
    out: Path | None
    resume: bool
    early_stop: int | None
    amp: bool
    compile: bool
    save_seconds: float

    def __post_init__(self) -> None:
        """Check that everything fits, set the network up, and restore the last state."""
        ranks.join(self.device)
        self.leads = ranks.rank() == 0  # and so writes files and shows progress
        self._check()
        self.held_out: tuple[Tensor, Tensor] | None = None
        if self.validation is not None:
            x, y = self.validation.read(torch.arange(len(self.validation)))
            self.held_out = (x.to(self.device), y.to(self.device))
        names = ("lr", "momentum", "nesterov", "weight_decay")
        settings: dict[str, Any] = {name: getattr(self.recipe, name) for name in names}
        self.optimizer = torch.optim.SGD(self.network.parameters(), **settings)
        self.identity = {} if self.out is None else self._identify()
        self.epoch = self.batch = 0
        self.begun = self.saved = time.monotonic()
        self.sums = torch.zeros(6, dtype=torch.float64)  # of the steps of this epoch
        self.history: list[EpochRecord] = []
        self.best: dict[str, Tensor] | None = None
        if self.out is not None:
            self.out.mkdir(parents=True, exist_ok=True)
            if self.resume and (state := checkpoint.load_state(self.out)) is not None:
                self._restore(state)
        follow_leader(self.network.state_dict().values())
        self.model = self.network
        if self.compile:
            self.model = cast(nn.Module, torch.compile(self.model))
        if self.amp:
            self.model = Autocast(self.model, self.device.type)

    def _check(self) -> None:
        method = self.recipe.method
        attacks = isinstance(method, AdversarialMethod)
        if self.early_stop is not None and (self.validation is None or not attacks):
            raise ValueError(
                "early_stop watches robust accuracy on validation images: pass validation=, and "
                f"use a method that attacks (this one is {method.name!r})"
            )
        if self.early_stop is not None and self.early_stop < 1:
            raise ValueError(f"early_stop: expected at least 1 epoch, got {self.early_stop}")
        first, classes = self.images.first.to(self.device), self.images.num_classes
        with in_eval_mode(self.network):
            check_network(self.network, first, classes, method.extra_outputs)

    def _identify(self) -> dict[str, Any]:
        """What must be the same for a resumed training to be the same training."""
        recipe = describe_recipe(self.recipe)
        return {
            **{k: v for k, v in recipe.items() if k not in ("rule_settings", "reject_rate")},
            "images": self.images.identity(),
            "validation images": None if self.validation is None else self.validation.identity(),
            "network": checkpoint.network_identity(self.network),
            "early_stop": self.early_stop,
            "amp": self.amp,
        }

    def _restore(self, state: dict[str, Any]) -> None:
        other = checkpoint.differences(self.identity, json.loads(state["identity"]))
        if other:
            raise ValueError(
                f"{self.out} holds the state of another training (other {', '.join(other)}); "
                "choose another folder, or start over with resume=False"
            )
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.batch = state["epoch"], state["batch"]
        tally = json.loads(state["tally"])
        self.sums = torch.tensor(tally["sums"], dtype=torch.float64)
        self.begun -= tally["seconds"]
        self.history = [EpochRecord(**record) for record in json.loads(state["history"])]
        self.best = state["best"]

    def _save(self) -> None:
        if not self.leads:
            return
        self.saved = time.monotonic()
        if not all(t.isfinite().all() for t in self.network.state_dict().values()):
            raise RuntimeError(self._diverged("a weight is not finite"))
        if self.out is None:
            return
        tally = {"sums": self.sums.tolist(), "seconds": time.monotonic() - self.begun}
        state = {
            "identity": json.dumps(self.identity),
            "network": self.network.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "epoch": self.epoch,
            "batch": self.batch,
            "tally": json.dumps(tally),
            "history": json.dumps([asdict(record) for record in self.history]),
            "best": self.best,
        }
        checkpoint.save_state(self.out, state)

    def _diverged(self, what: str) -> str:
        kept = "" if self.out is None else f" {self.out / checkpoint.STATE} is the last good state."
        return (
            f"{what} in epoch {self.epoch + 1}, batch {self.batch + 1}: training has diverged."
            f"{kept} Lower lr, or warm eps up for longer"
        )

    def run(self, *, show: bool) -> None:
        """Train, and leave the network in eval mode with the weights to keep."""
        epochs, count = self.recipe.epochs, len(self.images)
        seen = self.epoch * count + self.batch * self.recipe.batch_size
        patience = epochs if self.early_stop is None else self.early_stop
        with TrainingProgress(epochs, count, seen, show=show and self.leads) as shown:
            while self.epoch < epochs and self._since_best() < patience:
                self._run_epoch(shown)
        if self.best is not None:
            self.network.load_state_dict(self.best)
        follow_leader(self.network.state_dict().values())
        self.network.eval()

    def _run_epoch(self, shown: TrainingProgress) -> None:
        recipe, rank, world = self.recipe, ranks.rank(), ranks.world_size()
        batches = epoch_batches(len(self.images), recipe.batch_size, recipe.seed, self.epoch)
        self.steps, todo = len(batches), batches[self.batch :]
        mine = [share(numbers, rank, world) for numbers in todo]
        images = self.images.batches([own for own, _ in mine])
        self.network.train()
        for numbers, (own, weight), (x, y) in zip(todo, mine, images, strict=True):
            sums = self._step(x.to(self.device), y.to(self.device), own, weight, len(numbers))
            self.sums += sums.cpu()
            self.batch += 1
            shown.step(len(numbers), self._record())
            if time.monotonic() - self.saved > self.save_seconds:
                self._save()
        record = self._record(*self._validate())
        self.history.append(record)
        if self.early_stop is not None and self._since_best() == 0:
            self.best = {k: v.detach().clone() for k, v in self.network.state_dict().items()}
        shown.close_epoch(record)
        self.epoch, self.batch, self.begun = self.epoch + 1, 0, time.monotonic()
        self.sums.zero_()
        self._save()

    def _record(self, clean: float | None = None, robust: float | None = None) -> EpochRecord:
        """The epoch so far, with accuracies on the validation images."""
        loss, *shares = (
            total / count if count else None for total, count in self.sums.view(3, 2).tolist()
        )
        return EpochRecord(
            epoch=self.epoch,
            loss=loss or 0.0,
            clean=shares[0],
            adversarial=shares[1],
            validation_clean=clean,
            validation_robust=robust,
            seconds=time.monotonic() - self.begun,
        )

    def _step(self, x: Tensor, y: Tensor, numbers: Tensor, weight: float, count: int) -> Tensor:
        """Learn from this process's images of a batch of `count`, and give its sums `(6,)`.

        Of the images, `numbers` are those in the data set; `weight` is 0 if they stand in for none.
        """
        recipe, numbers = self.recipe, numbers.to(self.device)
        keys, augment_keys = (
            noise.keys(recipe.seed, use, self.epoch, numbers) for use in (_ATTACK, _AUGMENT)
        )
        x = AUGMENTATIONS[recipe.augmentation](x, augment_keys)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        progress = self.epoch + self.batch / self.steps
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.lr * recipe.schedule.factor(progress, recipe.epochs)
        follow_leader(self.network.buffers())  # the statistics of batch norm
        with self._own_dropout():
            losses: Losses = self._warmed_up(progress).loss(self.model, x, y, keys)
        sums = total(measure.step_sums(losses) * weight)
        if not math.isfinite(sums[0]):
            raise RuntimeError(self._diverged(f"the loss is {float(sums[0])}"))
        self.optimizer.zero_grad(set_to_none=True)
        # Summed over the processes, this is the gradient of the mean over the whole batch.
        (losses.rows.sum() * (weight / count)).backward()
        sum_gradients(self.network)
        self.optimizer.step()
        return sums

    def _warmed_up(self, progress: float) -> Method:
        length = self.recipe.warmup * self.recipe.epochs
        # Counted from one, so that the first step has some eps.
        done = progress + 1 / self.steps
        return self.recipe.method.scaled(done / length) if done < length else self.recipe.method

    @contextmanager
    def _own_dropout(self) -> Iterator[None]:
        """Layers that draw random numbers get the same ones in a resumed run."""
        key = noise.keys(self.recipe.seed, _DROPOUT, self.epoch, self.batch, ranks.rank())
        seed = int(key) & (2**63 - 1)
        gpus = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus):
            torch.default_generator.manual_seed(seed)
            if gpus:
                torch.cuda.manual_seed(seed)
            yield

    def _validate(self) -> tuple[float | None, float | None]:
        """Clean and robust accuracy on the validation images, as the leading process sees them."""
        method, clean, robust = self.recipe.method, None, None
        if self.leads and self.held_out is not None:
            known = (*self.held_out, self.images.num_classes)
            clean = measure.clean_accuracy(self.network, *known)
            if isinstance(method, AdversarialMethod):
                robust = measure.pgd_accuracy(self.network, *known, method.eps, norm=method.norm)
        return ranks.gather({ranks.rank(): (clean, robust)})[0]

    def _since_best(self) -> int:
        """Epochs since robust accuracy was highest."""
        robust = [record.validation_robust or 0.0 for record in self.history] or [0.0]
        return len(robust) - 1 - robust.index(max(robust))
