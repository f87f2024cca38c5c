"""Mutation tests: one small error at a time is put into a copy of this checkout, and the tests run.

    python -m tests.mutants [--only ID,ID] [--jobs 2] [--timeout 300] [--out rows.jsonl]

Each `*.toml` of this folder holds mutations, one table each:

    [[mutation]]
    id = "w-flops"
    file = "workload/lowering/layers/linear.py"
    old = '''flops=2 * m * n * k'''
    new = '''flops=m * n * k'''
    tests = ["tests/workload/test_formulas.py"]
    breaks = "matrix products count half their FLOPs"
    weight = "high"

`old` stands in `file` exactly once; `tests` are files, folders or test names that should notice
(tests marked slow or gpu are left out); `breaks` says what a user would see; `weight` is high,
middle or low. An entry with `equivalent = "reason"` changes nothing that a user could see: it is
listed, neither run nor counted.

Verdicts: `killed` by a test that passes on the clean copy; `survived`; `timeout`, where the clean
copy needs less time (counts as killed); `broken`: nothing could be collected (counts as killed);
`stale`: the text or a test is no longer there; `unclean`: the tests fail, or take too long, without
the mutation as well. The last two are errors of the list or the tests.
"""
