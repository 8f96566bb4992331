# shellcheck shell=bash disable=SC2034  # variables are for the scripts that source this
# Sourced by the other scripts: where the project is, what it needs, how its ranks start.
# After sourcing: $root, say, fail, no_options, install_packages, build_preset, and the variables that Open MPI wants.

source "$(dirname "${BASH_SOURCE[0]}")/help.sh"

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit

source scripts/mpi_env.sh

build_packages=(g++ cmake ninja-build pkg-config git ca-certificates libopenmpi-dev openmpi-bin libhwy-dev
  nlohmann-json3-dev libcli11-dev libgtest-dev libgmock-dev libbenchmark-dev libhwloc-dev libssl-dev python3 python3-venv)
test_packages=(chromium fonts-dejavu-core libsimgrid-dev g++-aarch64-linux-gnu
  clang-16 libclang-rt-16-dev libomp-16-dev llvm-16)  # for the sanitizers
[ "$(id -u)" -ne 0 ] || test_packages+=(slurm-wlm munge iproute2)  # only root can start a Slurm of its own

say() { printf '\n== %s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }
usage_error() { printf 'error: %s\n' "$*" >&2; exit 2; }
# no_options MOST ARGUMENT...: a usage error on an option, and on more than MOST arguments.
no_options() {
  local most=$1 argument
  shift
  for argument in "$@"; do [[ $argument != -* ]] || usage_error "unknown option '$argument': see $0 --help"; done
  [ $# -le "$most" ] || usage_error "$most arguments at most, not $#: see $0 --help"
}

# Debian packages that are missing; apt runs only when there are any.
install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing ${missing[*]}"
  command -v apt-get >/dev/null || fail "these Debian packages are needed and there is no apt-get: ${missing[*]}"
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || fail "run once as root, or install sudo: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  "${sudo[@]}" apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# configure_preset PRESET: configures build/PRESET.
configure_preset() {
  local cache=build/$1/CMakeCache.txt
  if [ -f "$cache" ] && ! grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$root" "$cache"; then
    fail "build/$1 was configured where this checkout stood before: rm -r '$root/build/$1'"
  fi
  cmake --preset "$1" -DPython3_EXECUTABLE="$root/.venv/bin/python" >"$root/build/$1-configure.log" 2>&1 ||
    { cat "$root/build/$1-configure.log"; fail "cmake --preset $1 failed"; }
}

# build_preset PRESET [TARGET...]: configures build/PRESET and builds the targets (default: all).
build_preset() {
  local preset=$1
  shift
  say "building preset $preset"
  configure_preset "$preset"
  cmake --build "build/$preset" ${1:+--target "$@"}
}
mkdir -p build
