"""What holds for local steps in every framework, of what two ranks saw in the same run."""

from __future__ import annotations


def check_own_models(both: list[dict], *, num_steps: int, num_exchanges: int) -> None:
    """Ranks train models of their own, on data of their own."""
    first, second = both
    assert first["own"] != second["own"]
    assert sorted(first["samples"] + second["samples"]) == list(range(40))
    for saw in both:
        assert (saw["steps"], saw["exchanges"]) == (num_steps, num_exchanges)
        assert saw["saved"] > 0.8


def check_ends(both: list[dict], *runs: str) -> None:
    """All ranks end these runs with the same model."""
    first, second = both
    for run in runs:
        assert first[run] == second[run] != "not finite", run


def check_common_model(both: list[dict], seen_as: str) -> None:
    """What is evaluated, or put in place, is the model that all have in common; so is what a checkpoint holds."""
    first, second = both
    assert first[seen_as] == second[seen_as] == first["in the checkpoint"]
    assert first["own"] != first[seen_as] != second["own"]
