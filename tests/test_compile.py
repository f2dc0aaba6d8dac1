import fcntl
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from headway import _compile
from headway._compile import compiling_alone


def _write_package(folder, factor):
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner.py").write_text(
        textwrap.dedent(f"""
        from headway._compile import compiled

        @compiled
        def scale(x):
            return x * {factor}
        """)
    )
    (folder / "outer.py").write_text(
        textwrap.dedent("""
        from headway._compile import compiled
        from package.inner import scale

        @compiled
        def twice(x):
            return scale(x) + scale(x)
        """)
    )


def _call(python, folder, **variables):
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); from package.outer import twice; "
    code += "print(twice(1), len(twice.stats.cache_hits) > 0)"
    environment = {**os.environ, **variables}
    result = subprocess.run(
        [python, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return result.stdout.split()


@pytest.mark.parametrize("elsewhere", [False, True], ids=["beside the source", "in NUMBA_CACHE_DIR"])
def test_an_edit_in_one_file_reaches_what_inlines_it(tmp_path, elsewhere, forked_python):
    """numba looks at the variable when it is imported, so that a process that has it already would not do."""
    variables = {"NUMBA_CACHE_DIR": str(tmp_path / "cache")} if elsewhere else {}
    python = sys.executable if elsewhere else forked_python
    _write_package(tmp_path / "package", 5)
    assert _call(python, tmp_path, **variables) == ["10", "False"]
    assert _call(python, tmp_path, **variables) == ["10", "True"]
    outer = tmp_path / "package" / "outer.py"
    before = outer.stat()
    _write_package(tmp_path / "package", 7)
    os.utime(outer, ns=(before.st_atime_ns, before.st_mtime_ns))  # only the inner file is new
    assert _call(python, tmp_path, **variables) == ["14", "False"]


def test_one_process_compiles_and_the_others_wait_until_it_is_done(tmp_path, monkeypatch):
    """Locks are of open files: threads that open the file stand for processes."""
    monkeypatch.setattr(_compile, "cache_folder", lambda _: tmp_path / "cache")
    order, is_inside, may_end = [], threading.Event(), threading.Event()

    def compile_first() -> None:
        with compiling_alone(_compile.compiled):
            is_inside.set()
            may_end.wait(30)
            order.append("first")

    def compile_second() -> None:
        with compiling_alone(_compile.compiled):
            order.append("second")

    first, second = threading.Thread(target=compile_first), threading.Thread(target=compile_second)
    first.start()
    assert is_inside.wait(30)
    second.start()
    second.join(0.2)  # it waits; a machine that holds it up longer makes no difference to the order
    assert second.is_alive()
    may_end.set()
    first.join()
    second.join()
    assert order == ["first", "second"]
    with compiling_alone(_compile.compiled), compiling_alone(_compile.compiled):
        pass  # nobody waits for what is done
    os.utime(tmp_path / "cache" / "headway-compiled", ns=(0, 0))
    with (
        compiling_alone(_compile.compiled),
        (tmp_path / "cache" / "headway-compiling.lock").open() as lock,
        pytest.raises(BlockingIOError),  # after an edit there is something to do again
    ):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_where_nothing_can_be_locked_all_compile(monkeypatch):
    monkeypatch.setattr(_compile, "cache_folder", lambda _: Path("/dev/null/nowhere"))
    with compiling_alone(_compile.compiled), compiling_alone(_compile.compiled):
        pass


def test_without_a_place_for_the_cache_it_compiles_all_the_same(tmp_path, monkeypatch):
    import numba

    from headway._compile import compiled

    original = numba.njit

    def refuse(*args, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return original(*args, **options)

    monkeypatch.setattr(numba, "njit", refuse)
    assert compiled(lambda x: x + 1)(1) == 2
