"""The sandbox: judges a kernel against a float64 oracle and times it beside what production runs.

status       what can be said about a kernel on a workload
checks       the names of the checks, and the hook by which tests switch one off
tensors      guarded copies of arguments, and tensors as files between processes
contents     which values a call sees: seeds, near twins, single rows
compare      errors against the oracle, and the tolerance derived from what the yardsticks lose
judge        a candidate's raw outputs -> a verdict, in a process the candidate never was in
zygote       a clean process that forks the children
child        the parent's end of a child: requests, limits, what its death means
worker       the child's end: loads the candidate, calls it, times it
audit        what a candidate changed in its process
timer        one interface over the CPU clock and CUDA events and graphs
baselines    what production runs for a task
ceilings     the device's measured bandwidth and arithmetic peak
statistics   samples -> ratio with an interval, or "too noisy"
linter       whether a task can tell right from wrong
session      one `fk bench`: baselines, candidates, workloads, verdicts
report       the table and the JSON file
"""
