"""Task and Workload validate themselves."""

import pytest

from fk_plugin.task import Cost, Overload, Task, Workload


def _overload(schema: str) -> Overload:
    return Overload(schema=schema, reference=lambda x: x, fake=lambda x: x)


def _task(**changes: object) -> Task:
    fields: dict[str, object] = {
        "name": "thing",
        "summary": "",
        "overloads": (_overload("thing(Tensor x) -> Tensor"),),
        "workloads": (),
        "make_inputs": lambda w, d, s: (),
        "cost": lambda w: Cost(bytes=1, flops=1),
        "tokens": lambda x: 1,
    }
    return Task(**{**fields, **changes})  # type: ignore[arg-type]


def test_overload_names_and_mutation_come_from_the_schema() -> None:
    task = _task(overloads=(_overload("thing(Tensor x) -> Tensor"), _overload("thing.out(Tensor(a!) x) -> ()")))
    assert [(o.name, o.mutates) for o in task.overloads] == [("default", False), ("out", True)]


@pytest.mark.parametrize("schema", ["other(Tensor x) -> Tensor", "Thing(Tensor x) -> Tensor", "thing"])
def test_a_schema_of_another_name_is_refused(schema: str) -> None:
    with pytest.raises(ValueError, match="schema must start with the task's name"):
        _task(overloads=(_overload(schema),))


def test_an_overload_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="declared twice"):
        _task(overloads=(_overload("thing(Tensor x) -> Tensor"),) * 2)


def test_workload_names_are_unique_and_phases_known() -> None:
    one = Workload(name="a", axes={}, dtype="float32", source="", phase="decode")
    with pytest.raises(ValueError, match="unique"):
        _task(workloads=(one, one))
    with pytest.raises(ValueError, match="phase must be"):
        Workload(name="a", axes={}, dtype="float32", source="", phase="training")
