"""Which test covers which reported fault, so that none can be lost without a failure here.

A number is a fault's in the project's list of public reports; its kinds say where it must be covered: C on a CPU with
a small fake kernel or timer, G on a GPU, E end to end in an engine. A reference is "file::test", or a kernel's file
where a cheat is the test. "later: ..." names the topic of the work that a test waits for.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

CASES = "tests/fk_plugin/bench/test_cases.py"
COMPARE = "tests/fk_plugin/bench/test_compare.py"
CUDA_TIMER = "tests/fk_plugin/bench/test_cuda_timer.py"
PLAN = "tests/fk_plugin/bench/test_case_44.py"
CACHE = "tests/fk_plugin/test_case_58.py"
GPU = "integration_tests/gpu/test_cases_gpu.py"
GPU_TIMER = "integration_tests/gpu/test_cases_timer_gpu.py"
CHEATS = "integration_tests/cheats"
VLLM, SGLANG = "integration_tests/engines/test_vllm.py", "integration_tests/engines/test_sglang.py"

TABLE: dict[int, dict[str, list[str]]] = {
    1: {"C": [f"{COMPARE}::test_case_01_zeros_and_constants_fail_where_outputs_are_small"]},
    2: {
        "C": [
            f"{CASES}::test_case_02_task_whose_output_ignores_an_input_is_refused",
            f"{CASES}::test_case_02_trivial_inputs_are_refused",
        ]
    },
    4: {"C": [f"{CASES}::test_case_04_modified_input_fails"], "G": [f"{CHEATS}/side_stream/kernel.py"]},
    5: {"C": [f"{CASES}::test_case_05_candidate_first_on_shared_inputs_changes_nothing_for_the_reference"]},
    6: {"C": [f"{COMPARE}::test_case_06_infinities_match_infinities_and_nothing_else"]},
    8: {"C": [f"{COMPARE}::test_case_08_a_few_wild_rows_fail"]},
    9: {"C": [f"{COMPARE}::test_case_09_one_tiny_element_or_one_row_in_a_hundred_fails"]},
    11: {"C": [f"{COMPARE}::test_case_11_nan_output_fails"]},
    12: {"C": [f"{COMPARE}::test_case_12_mask_comes_from_the_reference_and_zero_rows_are_absolute"]},
    14: {
        "C": [f"{COMPARE}::test_case_14_a_missing_rounding_fails_although_it_is_closer_to_the_truth"],
        "E": [f"{SGLANG}::test_a_kernel_wrong_by_ten_percent_fails_the_accuracy_check"],
    },
    15: {
        "C": [f"{CASES}::test_case_15_rows_must_not_depend_on_the_batch"],
        "G": [f"{GPU}::test_case_15_a_row_alone_equals_the_row_in_a_batch"],
    },
    17: {
        "C": [f"{CASES}::test_case_17_right_only_at_the_listed_sizes_fails"],
        "G": [f"{GPU}::test_case_17_every_hidden_size_and_token_count"],
    },
    19: {
        "C": [f"{CASES}::test_case_19_other_bits_from_run_to_run_fail"],
        "G": [f"{GPU}::test_case_19_the_same_call_gives_the_same_bits"],
    },
    21: {
        "G": [
            f"{GPU}::test_case_21_rows_beyond_2_31_elements_are_read",
            f"{GPU}::test_case_21_columns_beyond_2_31_elements_are_read",
            f"{GPU}::test_case_21_rows_beyond_2_31_elements_are_written",
            f"{GPU}::test_case_21_cache_slots_beyond_2_31_elements_are_written",
        ]
    },
    22: {
        "C": [f"{CASES}::test_case_22_forgotten_stride_fails"],
        "G": [f"{GPU}::test_case_22_strided_inputs_are_right_or_refused"],
    },
    23: {
        "C": [
            f"{CASES}::test_case_23_a_guard_may_decline_a_layout",
            f"{CASES}::test_case_23_a_kernel_that_declines_everything_gets_no_number",
        ]
    },
    25: {"C": [f"{CASES}::test_case_25_undeclared_mutation_fails"]},
    26: {"C": [f"{CASES}::test_case_26_aliased_arguments_keep_sharing_memory"]},
    28: {"C": [f"{CASES}::test_case_28_value_returned_instead_of_written_fails"]},
    29: {
        "C": [f"{CASES}::test_case_29_empty_in_empty_out"],
        "G": [f"{GPU}::test_case_29_nothing_in_nothing_out"],
    },
    31: {"G": [f"{GPU}::test_case_31_more_rows_than_a_grid_axis_takes"]},
    32: {
        "C": [
            f"{CASES}::test_case_32_writes_beside_the_arguments_are_seen",
            "tests/fk_kernels/interpreted.py::test_cache_write_stays_inside_its_slots",
        ]
    },
    34: {"G": [f"{GPU}::test_case_34_the_tensor_decides_the_device_not_the_current_one"]},
    35: {"C": [f"{CASES}::test_case_35_preparation_is_outside_the_clock"]},
    36: {
        "C": [f"{CUDA_TIMER}::test_case_36_38_flush_and_copies_lie_outside_the_events_and_calls_share_a_graph"],
        "G": [
            f"{GPU_TIMER}::test_case_36_a_read_that_fits_in_l2_is_slower_cold_than_warm",
            f"{GPU_TIMER}::test_case_36_a_cold_read_of_64_mib_takes_its_bytes_and_no_flush",
        ],
    },
    38: {
        "C": [f"{CUDA_TIMER}::test_case_36_38_flush_and_copies_lie_outside_the_events_and_calls_share_a_graph"],
        "G": [
            f"{GPU_TIMER}::test_case_38_time_on_the_host_is_no_time_of_the_kernel",
            f"{GPU_TIMER}::test_case_38_calls_share_the_cost_of_a_graph_launch",
        ],
    },
    39: {"C": [f"{CASES}::test_case_39_zero_time_is_a_typed_error"]},
    41: {"C": [f"{CASES}::test_case_41_late_work_is_waited_for"]},
    42: {
        "C": [f"{CUDA_TIMER}::test_case_42_a_graph_that_does_nothing_leaves_the_poison"],
        "G": [
            f"{GPU_TIMER}::test_case_42_a_graph_without_work_leaves_the_poison",
            f"{CHEATS}/default_stream/kernel.py",
        ],
    },
    43: {
        "C": [f"{CUDA_TIMER}::test_case_43_a_replay_computes_from_the_values_of_this_sample"],
        "G": [f"{GPU_TIMER}::test_case_43_a_replay_computes_from_new_inputs", f"{CHEATS}/default_stream/kernel.py"],
    },
    44: {
        "C": [
            f"{PLAN}::test_case_44_a_declared_plan_is_not_charged",
            f"{PLAN}::test_case_44_a_plan_inside_every_call_is_charged",
            f"{PLAN}::test_case_44_a_declared_plan_runs_once_and_before_the_first_call",
        ]
    },
    45: {"C": [f"{CASES}::test_case_45_each_attempt_measures_anew"]},
    47: {"C": [f"{CASES}::test_case_47_too_noisy_says_so_instead_of_a_number"]},
    48: {
        "C": [
            "tests/fk_tasks/test_case_48.py::test_case_48_inputs_are_realistic",
            "tests/fk_tasks/test_case_48.py::test_case_48_no_two_seeds_are_equal",
        ]
    },
    49: {
        "C": [
            f"{CASES}::test_case_49_results_of_earlier_calls_fail",
            f"{CASES}::test_case_49_no_mean_over_a_failure",
            f"{CHEATS}/batch_and_skip/kernel.py",
            f"{CHEATS}/cache_by_identity/kernel.py",
            f"{CHEATS}/phase_replay/kernel.py",
        ]
    },
    51: {
        "C": [
            f"{COMPARE}::test_case_51_large_tensors_are_compared_in_parts",
            "tests/fk_tasks/test_case_51.py::test_case_51_some_workload_is_not_bound_by_its_launch",
            "tests/fk_tasks/test_case_51.py::test_case_51_every_workload_fits",
        ]
    },
    52: {"C": [f"{CASES}::test_case_52_both_sides_get_the_same_kind_of_call"]},
    54: {
        "C": [
            f"{CASES}::test_case_54_two_crashes_are_not_equal",
            "tests/fk_plugin/bench/test_files.py::test_a_change_is_named_and_left_alone",
        ]
    },
    55: {"E": [f"{VLLM}::test_default_mode_on_real_weights"]},
    56: {"E": [f"{SGLANG}::test_real_weights_proved_and_accurate", f"{VLLM}::test_default_mode_on_real_weights"]},
    58: {
        "C": [
            f"{CACHE}::test_case_58_two_bodies_under_one_name_have_two_fingerprints",
            f"{CACHE}::test_case_58_the_c_file_beside_a_kernel_is_part_of_its_hash",
            f"{CACHE}::test_case_58_a_module_that_the_kernel_imports_from_its_folder_is_part_of_its_hash",
            f"{CACHE}::test_case_58_every_kernel_of_the_package_has_the_hash_of_a_file",
            f"{CACHE}::test_case_58_a_cached_graph_runs_the_kernel_in_force_now",
        ],
        "E": ["integration_tests/engines/test_uninstall.py::test_uninstalled_equals_never_installed"],
    },
    60: {"E": ["later: start-up cost of the plugged engine"]},
    61: {"E": ["later: gain of a fused operator measured in the engine"]},
    62: {"E": [f"{VLLM}::test_default_mode_on_real_weights", f"{SGLANG}::test_real_weights_proved_and_accurate"]},
    64: {"C": ["later: serving metrics"]},
    65: {
        "C": ["tests/fk_kernels/test_case_65.py::test_case_65_compiles_without_a_graph_break_to_the_same_bits"],
        "G": [f"{GPU}::test_case_65_compiles_without_a_graph_break_to_the_same_bits"],
    },
    67: {
        "C": [
            f"{CASES}::test_case_67_interval_covers_its_ratio_and_shrinks_with_samples",
            f"{CASES}::test_case_52_both_sides_get_the_same_kind_of_call",
            "tests/fk_plugin/bench/test_bench_command.py::test_a_strangers_kernel_gets_a_table_and_a_file",
        ]
    },
    68: {
        "C": [
            f"{CASES}::test_case_68_warm_up_rule_spares_a_lazy_first_call",
            "integration_tests/test_cheats.py::test_honest_kernel_is_not_accused",
        ]
    },
}
# Faults whose test waits for work that is not there yet. Whoever adds to this set is asked why.
WAITING = {60, 61, 64}
# Numbered after the list of reward hacks, not after that of reports.
HACKS = {"test_case_30_precision_cut_fails"}
HOMES = {
    "C": ("tests/", "integration_tests/test_cheats.py", f"{CHEATS}/"),
    "G": ("integration_tests/gpu/", f"{CHEATS}/"),
    "E": ("integration_tests/engines/",),
}
ALL = [(case, kind, name) for case, kinds in TABLE.items() for kind, names in kinds.items() for name in names]


def _later(name: str) -> bool:
    return re.fullmatch(r"later: \w.*", name) is not None


def _tests(file: Path) -> set[str]:
    """The test functions of a file, without importing it: a GPU's or an engine's need not be importable here."""
    tree = ast.parse(file.read_text())
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")}


@pytest.mark.parametrize(("case", "kind", "name"), ALL, ids=lambda value: str(value).rsplit("::", 1)[-1])
def test_the_named_test_exists(case: int, kind: str, name: str) -> None:
    if _later(name):
        return
    file, _, test = name.partition("::")
    assert (ROOT / file).is_file(), f"case {case}: {file} is gone"
    assert file.startswith(HOMES[kind]), f"case {case}: {file} is no place for a test of kind {kind}"
    if test:
        assert test in _tests(ROOT / file), f"case {case}: {file} has no {test}"
        return
    device = {"C": "cpu", "G": "cuda"}[kind]
    assert f"\nDevice: {device}\n" in (ROOT / file).read_text(), f"case {case}: {file} is not for {device}"


def test_every_case_has_a_test_of_each_of_its_kinds() -> None:
    empty = [(case, kind) for case, kinds in TABLE.items() for kind, names in kinds.items() if not names]
    assert empty == [] and all(TABLE.values())
    assert {case for case, _, name in ALL if _later(name)} == WAITING


def test_no_test_named_after_a_case_is_missing_from_the_table() -> None:
    named = {name for _, _, name in ALL}
    for folder in ("tests", "integration_tests"):
        for file in (ROOT / folder).rglob("test_*.py"):
            for test in _tests(file):
                if re.match(r"test_case_\d+_", test) and test not in HACKS:
                    assert f"{file.relative_to(ROOT)}::{test}" in named, f"{test} is in no row of the table"


def test_the_table_is_in_order_and_complete() -> None:
    assert list(TABLE) == sorted(TABLE)
    assert len(TABLE) == 48, "a report was added or dropped; change the number with it"
