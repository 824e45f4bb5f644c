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

# Install picstore in .venv, editable, with an extra ("dev") and other packages: once for each list of requirements, as
# pip is slow even where nothing is missing. All at the versions of constraints.txt: with the newest, one script replaced
# the PyTorch of another that was running.
install_picstore() {
  local stamp=".venv/installed-$*" extra=$1
  shift
  if ! cat pyproject.toml constraints.txt | cmp -s - "$stamp"; then
    echo "Installing picstore[$extra] into .venv (minutes the first time: PyTorch is large) ..."
    python -m pip install --quiet --constraint constraints.txt --editable ".[$extra]" "$@"
    cat pyproject.toml constraints.txt >"$stamp"
  fi
}

if [ ! -x .venv/bin/python ]; then
  python=$(find_python)
  "$python" -m venv .venv
  .venv/bin/python -m pip install --quiet --upgrade pip
fi
export PATH="$PWD/.venv/bin:$PATH"
