"""The compiled engine, left out where there is no C compiler; all else stands in setup.cfg."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "simulator.engine._core",
            ["simulator/engine/core.c"],
            define_macros=[("Py_LIMITED_API", "0x030b0000")],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
