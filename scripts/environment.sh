# Sourced by the scripts beside it: they start in the repository, with a .venv that has dslaunch installed.
#
# prepare_environment [EXTRA]  makes .venv where there is none and installs this checkout into it (`.[EXTRA]`),
# again only when pyproject.toml, constraints.txt or the checkout's place have changed since.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

prepare_environment() {
    # One at a time: two scripts started together must not install into each other. The lock is on the folder
    # itself, so that no file stays behind.
    if command -v flock >/dev/null; then
        exec 9<"$root"
        flock 9
    fi
    _make_venv
    _install "${1:-}"
    exec 9<&-
}

_make_venv() {
    if [ -x .venv/bin/python ] && .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
        return
    fi
    local python options=()
    python=$(_find_python)
    # A machine that has torch already (a GPU image, say) keeps its own: it fits the driver, and is gigabytes.
    if _has_torch "$python"; then
        options=(--system-site-packages)
    fi
    echo "== making .venv with $python${options[*]:+ ${options[*]}}"
    "$python" -m venv --clear "${options[@]}" .venv
    if [ ${#options[@]} -gt 0 ]; then
        _see_packages_of "$python"
    fi
}

_find_python() {
    local candidate found
    for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        found=$(command -v "${candidate:-no-such-program}") || continue
        if "$found" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$found"
            return
        fi
    done
    {
        echo "error: no Python 3.10 or newer with the venv module on PATH"
        echo "hint: install one (Debian: apt install python3-venv), or name it: PYTHON=/path/to/python $0"
    } >&2
    exit 2
}

_has_torch() {
    "$1" - 2>/dev/null <<'PYTHON'
import re, sys
from importlib.metadata import version
sys.exit(tuple(int(part) for part in re.findall(r"\d+", version("torch"))[:2]) < (2, 9))
PYTHON
}

_see_packages_of() {
    # --system-site-packages means those of the Python behind a virtual environment, not its own.
    local folder
    folder=$("$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    echo "$folder" >"$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/host-packages.pth"
}

_install() {
    local extra=$1 stamp=.venv/dslaunch-installed state options=(-c constraints.txt)
    state="$root $(cat pyproject.toml constraints.txt | cksum)"
    if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" = "$state" ] && grep -qx "extra:$extra" "$stamp"; then
        return
    fi
    if grep -q '^include-system-site-packages = true' .venv/pyvenv.cfg; then
        options=()
    fi
    .venv/bin/python -m pip --version >/dev/null 2>&1 || .venv/bin/python -m ensurepip >/dev/null  # uv leaves pip out
    echo "== installing dslaunch${extra:+ with its $extra tools} into .venv"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable ".${extra:+[$extra]}" "${options[@]}"
    printf '%s\n' "$state" "extra:" "extra:$extra" >"$stamp"
}
