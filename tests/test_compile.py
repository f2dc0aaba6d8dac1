import os
import subprocess
import sys
import textwrap

import pytest


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
