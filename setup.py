"""What setup.cfg cannot say: the compiled core, left out where no C compiler is, and bytecode."""

from __future__ import annotations

from py_compile import PycInvalidationMode, compile
from typing import ClassVar

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


class WithBytecode(build_py):
    """A wheel has the bytecode of the Python that built it, so that the first command is no slower
    than the others, also where nothing may be written beside the code, or the installer compiles
    nothing. Other versions of Python leave it alone."""

    user_options: ClassVar = build_py.user_options

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            for path in self.get_outputs(include_bytecode=False):
                if path.endswith(".py"):
                    how = PycInvalidationMode.UNCHECKED_HASH  # an installer sets other dates
                    compile(path, doraise=True, invalidation_mode=how)


setup(
    cmdclass={"build_py": WithBytecode},
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
