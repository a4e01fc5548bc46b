"""Ray Train's elastic mode with another count of what is free, and of what is a fault.

Ray has no public way to give it a scaling policy, so this names parts of Ray Train V2 that may
change; tried with Ray 2.60.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .raytrain import LeaseEnded

if TYPE_CHECKING:
    from .raytrain import Job

# Not imported by name: nobody needs Ray to check this package's types.
ray: Any = import_module("ray")
train: Any = import_module("ray.train")
_INNER = "ray.train.v2._internal.execution"
_failing: Any = import_module(f"{_INNER}.failure_handling")
_scaling: Any = import_module(f"{_INNER}.scaling_policy")
_trainer: Any = import_module("ray.train.v2.api.data_parallel_trainer")

#: The label that Ray gives each of its nodes.
_NODE = "ray.io/node-id"
#: Errors by which workers make way, by name: Ray hands them over as causes of its own.
_NO_FAULTS = ("CardWanted", "MoreRoom")

_ENDED = "LeaseEnded"


class Placed(train.ScalingConfig):  # type: ignore[misc]
    """Workers start on the hosts whose cards were counted."""

    cards: Any = None

    def _label_selector_per_worker(self, num_workers: int) -> list[dict[str, str]] | None:
        places = ray.get(self.cards.places.remote(num_workers)) if self.cards is not None else []
        return [{_NODE: place} for place in places] or None


class ByLeases(_scaling.ElasticScalingPolicy):  # type: ignore[misc]
    """As many workers as the node managers have cards; workers say themselves when to grow."""

    def _count_possible_workers(self, reserved_resources: Any) -> int:
        # Ray's own count is of no use: a worker needs next to nothing of what Ray counts.
        return len(ray.get(self.scaling_config.cards.decide.remote()))

    def make_decision_for_running_worker_group(
        self, worker_group_state: Any, worker_group_status: Any
    ) -> Any:
        """A resize of its own would end workers within a step."""
        self._maybe_send_resource_request()
        return _scaling.NoopDecision()


class FaultsOnly(_failing.DefaultFailurePolicy):  # type: ignore[misc]
    """Workers that make way are no fault."""

    def make_decision(self, training_failed_error: Any) -> Any:
        failures = getattr(training_failed_error, "worker_failures", {})
        if ended(training_failed_error) is not None:
            return _failing.FailureDecision.RAISE
        if any(name in repr(error) for error in failures.values() for name in _NO_FAULTS):
            return _failing.FailureDecision.RETRY
        return super().make_decision(training_failed_error)


def ended(error: Any) -> str | None:
    """Why a worker's lease has ended, where that is what stopped the workers."""
    for cause in getattr(error, "worker_failures", {}).values():
        text = str(getattr(cause, "cause", cause))
        if _ENDED in repr(cause) or _ENDED in text:
            return text.rpartition(f"{_ENDED}: ")[2].partition("\n")[0]
    return None


class Trainer(_trainer.DataParallelTrainer):  # type: ignore[misc]
    """Ray Train's trainer with these policies."""

    def _initialize_and_run_controller(self, **given: Any) -> Any:
        given["scaling_policy"] = ByLeases(self.scaling_config)
        given["failure_policy"] = FaultsOnly(self.run_config.failure_config)
        return super()._initialize_and_run_controller(**given)


def fit(
    work: Callable[[], Any],
    *,
    job: Job,
    cards: Any,
    storage: str,
    resources: dict[str, float],
    max_failures: int,
) -> Any:
    """Run it to its end; Ray Train's result.

    Raises `LeaseEnded`, and Ray's ``TrainingFailedError``.
    """
    scaling = Placed(num_workers=(job.least, job.most), resources_per_worker=resources)
    scaling.cards = cards
    trainer = Trainer(
        work,
        scaling_config=scaling,
        run_config=train.RunConfig(
            name=job.name,
            storage_path=storage,
            failure_config=train.FailureConfig(max_failures=max_failures),
        ),
    )
    try:
        return trainer.fit()
    except train.TrainingFailedError as error:
        why = ended(error)
        if why is None:
            raise
        raise LeaseEnded(
            f"One of its leases has ended: {why} So it saved and stopped. Run it again with the "
            f"name {job.name!r} and the same storage, and it goes on."
        ) from error
