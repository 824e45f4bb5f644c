# Sourced by the scripts of this folder: .venv with Python 3.10 or newer, first on the path.
cd "$(dirname "${BASH_SOURCE[0]}")/.."

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "picstore needs Python 3.10 or newer with venv; set PYTHON to one" >&2
  return 1
}

# Install picstore in .venv, editable, with extras ("dev"), and other packages, if they are given: once for each pyproject.toml and constraints.txt, at its
# versions: with the newest, one script replaced the PyTorch of another that was running. uv compares what it installs
# with the hashes of constraints.txt, which pip cannot do beside a folder that has none; pip compares uv. The hashes are
# not those of the wheels that UV_TORCH_BACKEND, a variable of uv, chooses.
install_picstore() {
  local extra=$1 stamp
  stamp=".venv/installed-$(IFS=-; echo "$*")"
  shift
  if ! cat pyproject.toml constraints.txt | cmp -s - "$stamp"; then
    echo "Installing picstore[$extra] into .venv (the first time this takes a while) ..."
    sed -n '/^uv==/,/[^\\]$/p' constraints.txt >.venv/uv.txt
    python -m pip install --quiet --require-hashes --requirement .venv/uv.txt
    uv pip install --quiet --python .venv/bin/python --constraint constraints.txt --build-constraint constraints.txt \
      ${UV_TORCH_BACKEND:+--no-verify-hashes} --editable ".[$extra]" "$@"
    cat pyproject.toml constraints.txt >"$stamp"
  fi
}

if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --upgrade pip
fi
export PATH="$PWD/.venv/bin:$PATH"
